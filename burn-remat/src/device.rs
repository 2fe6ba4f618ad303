//! Budgets for Burn's own `Device`: [`RematExt`].
//!
//! A program that uses `burn::Tensor` reaches only the backends that Burn's dispatch lists. Burn's official door for any
//! other is its remote device, so the remat backend is served inside the process: on 127.0.0.1, on a port that the
//! system chooses, to clients that know a random token which never leaves the process. The program gets a plain
//! `Device` connected to it.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use burn::backend::{DispatchDevice, GradientCheckpointingStrategy};
use burn::remote::{CustomOpClient, RemoteHost};
use burn::server::{PeerAuthorizer, TokenAuthorizer, Transport, WebSocketTransport};
use burn::tensor::Device;
use burn_ir::{CustomOpIr, ScalarIr};
use burn_remote::server::{BackendServer, ServerLogging};
use burn_router::get_client;
use burn_std::config::remote::RemoteConfig;
use burn_std::config::{BurnConfig, RuntimeConfig};
use tokio::runtime::Runtime;
use tokio::signal;

use crate::backend::{Remat, RematBackend, RematChannel, RematClient, RematDevice, lock};
use crate::checkpoint::CheckpointPolicy;
use crate::config::RematConfig;
use crate::engine::panic_message;
use crate::error::RematError;
use crate::planning::Trace;
use crate::rehearse::Rehearsal;
use crate::report::RematReport;
use crate::stage::{self, Stage};

/// The in-band operation that marks a step.
const MARK: &str = "remat.mark";

/// Memory budgets for [`Device`]: see the [example](crate) of the crate.
pub trait RematExt: Sized {
    /// A device like this one on which tensors are evicted and recomputed to stay inside a budget.
    ///
    /// `config` is a budget (`"8 GiB"`, `"60%"`, `"80% free"`, a number of bytes) or a whole [`RematConfig`]. Every call makes another
    /// device with a budget of its own. An autodiff device gives an autodiff device.
    ///
    /// # Errors
    ///
    /// A budget that cannot be, a device that cannot carry one, or a loopback server that cannot start.
    fn remat(&self, config: impl Into<RematConfig>) -> Result<Device, RematError>;

    /// A device like this one with a budget in bytes and a plan for every step that `train` does, made on a dry device
    /// before anything is allocated, so that the first step already fits. `train` is to do at least three training steps; reads
    /// give zeros there, and what it returns is dropped.
    ///
    /// # Errors
    ///
    /// As [`remat`](Self::remat) and [`minimum_budget`](crate::minimum_budget).
    fn remat_rehearsed<R>(
        &self,
        config: impl Into<RematConfig>,
        train: impl FnOnce(&Device) -> R,
    ) -> Result<Device, RematError>;

    /// What this remat device has done so far. Waits for its pending operations.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_report(&self) -> Result<RematReport, RematError>;

    /// Starts the counters of [`remat_report`](Self::remat_report) anew.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_reset_report(&self) -> Result<(), RematError>;

    /// Waits until no planner is at work in the background, at most for `limit`; `false` if the time was up first. A plan
    /// found is in force from the next training step on.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_wait_for_plan(&self, limit: Duration) -> Result<bool, RematError>;

    /// Opens a stage: until the guard is dropped, the operations of this thread on this device belong to it, in the report, in
    /// pictures, and in the graph that is planned. Stages nest. An empty `name` opens none; on any other device this
    /// does nothing.
    ///
    /// Names are kept for as long as the process runs: give a stage the same name in every step. The attribute
    /// [`remat`](macro@crate::remat) does this for a whole method.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_remat::RematExt;
    ///
    /// let device = Device::flex().remat("64 MiB")?;
    /// let x = Tensor::<2>::ones([8, 8], &device);
    /// let y = {
    ///     let _stage = device.remat_stage("encoder");
    ///     x.clone().matmul(x)
    /// };
    /// assert_eq!(y.sum().into_scalar::<f32>(), 512.0);
    /// assert_eq!(device.remat_report()?.stages[0].stage, "encoder");
    /// # Ok::<(), burn_remat::RematError>(())
    /// ```
    fn remat_stage(&self, name: &str) -> Stage;

    /// Opens a stage of whose results `policy` says what may happen to them.
    fn remat_stage_with(&self, name: &str, policy: CheckpointPolicy) -> Stage;

    /// Says that a training step begins here, in order with the operations. Without marks the engine finds the steps
    /// itself; with them it knows exactly. On any other device this does nothing.
    fn remat_mark_step(&self);

    /// Says that this remote device is one that burn-remat serves ([`serve`]) in another process: from now on
    /// [`remat_mark_step`](Self::remat_mark_step) is sent to it. Any other remote device would refuse it as an unknown
    /// operation. Stages are not sent: their names are known only in this process.
    fn remat_is_served(&self);
}

impl RematExt for Device {
    fn remat(&self, config: impl Into<RematConfig>) -> Result<Device, RematError> {
        let config = config.into();
        let device = with_backend(self, config.fusion, ServeInProcess { config })?;
        Ok(with_autodiff_of(self, device))
    }

    fn remat_rehearsed<R>(
        &self,
        config: impl Into<RematConfig>,
        train: impl FnOnce(&Device) -> R,
    ) -> Result<Device, RematError> {
        crate::rehearse::rehearsed(self, config.into(), |device| drop(train(device)))
    }

    fn remat_report(&self) -> Result<RematReport, RematError> {
        let engine = engine_of(self)?;
        // An error of earlier work stands in the report.
        let _ = self.sync();
        Ok(engine.report())
    }

    fn remat_reset_report(&self) -> Result<(), RematError> {
        let engine = engine_of(self)?;
        let _ = self.sync();
        engine.reset_report();
        Ok(())
    }

    fn remat_wait_for_plan(&self, limit: Duration) -> Result<bool, RematError> {
        let engine = engine_of(self)?;
        let _ = self.sync();
        Ok(engine.wait_for_plan(limit))
    }

    fn remat_stage(&self, name: &str) -> Stage {
        Stage::on(self, name, None)
    }

    fn remat_stage_with(&self, name: &str, policy: CheckpointPolicy) -> Stage {
        Stage::on(self, name, Some(policy))
    }

    fn remat_mark_step(&self) {
        let plain = self.clone().without_autodiff();
        if let (DispatchDevice::Remote(remote), true) = (plain.as_dispatch(), is_remat(&plain) || is_served(&plain)) {
            // A fusing client may hold operations back: they belong before the mark.
            let _ = self.flush();
            let _ = CustomOpClient::new(remote).register(CustomOpIr::new(MARK, &[], &[]));
        }
    }

    fn remat_is_served(&self) {
        let plain = self.clone().without_autodiff();
        let mut served = lock(&SERVED);
        if !served.contains(&plain) {
            served.push(plain);
        }
    }
}

/// `device`, with autodiff if `original` has it.
fn with_autodiff_of(original: &Device, device: Device) -> Device {
    match original.gradient_checkpointing_strategy() {
        None => device,
        Some(GradientCheckpointingStrategy::Disabled) => device.autodiff(),
        Some(GradientCheckpointingStrategy::Balanced) => device.autodiff().gradient_checkpointing(),
    }
}

/// What the adapter asks of an engine, whatever its backend.
trait EngineControl: Send + Sync {
    fn report(&self) -> RematReport;
    fn reset_report(&self);
    fn wait_for_plan(&self, limit: Duration) -> bool;
    fn rehearsed(&self) -> Vec<Trace>;
    /// Forgets everything, and goes on as a new engine would.
    fn restart(&self, config: RematConfig);
}

impl<B: RematBackend> EngineControl for RematClient<B> {
    fn report(&self) -> RematReport {
        self.report()
    }

    fn reset_report(&self) {
        self.reset_report();
    }

    fn wait_for_plan(&self, limit: Duration) -> bool {
        self.wait_for_plan(limit)
    }

    fn rehearsed(&self) -> Vec<Trace> {
        self.rehearsed()
    }

    fn restart(&self, config: RematConfig) {
        self.restart(config);
    }
}

/// Runs `train` on a device like `device` that is only looked at, and gives the steps that it did, each kind once, in
/// order.
pub(crate) fn rehearse(
    device: &Device,
    config: &RematConfig,
    rehearsal: Rehearsal,
    train: impl FnOnce(&Device),
) -> Result<Vec<Trace>, RematError> {
    let config = config.rehearsing(rehearsal);
    let observed = match take_idle(device) {
        Some(Idle { observed, engine, .. }) => {
            engine.restart(config);
            lock(&ENGINES).push((observed.clone(), engine));
            with_autodiff_of(device, observed)
        }
        None => device.remat(config)?,
    };
    train(&observed);
    let engine = engine_of(&observed)?;
    let _ = observed.sync();
    let traces = engine.rehearsed();
    // It holds nothing any more, and waits for the next rehearsal.
    engine.restart(RematConfig::default());
    let observed = observed.without_autodiff();
    lock(&ENGINES).retain(|(known, _)| *known != observed);
    lock(&IDLE).push(Idle { base: device.clone().without_autodiff(), observed, engine });
    if traces.is_empty() { Err(RematError::NoSteps) } else { Ok(traces) }
}

/// A device of an earlier rehearsal on a device like `device`: Burn keeps the threads of every connection for as long as the
/// process runs, and a search rehearses many times.
fn take_idle(device: &Device) -> Option<Idle> {
    let plain = device.clone().without_autodiff();
    let mut idle = lock(&IDLE);
    let at = idle.iter().position(|known| known.base == plain)?;
    Some(idle.swap_remove(at))
}

/// The remat devices made by this process and their engines.
static ENGINES: Mutex<Vec<(Device, Arc<dyn EngineControl>)>> = Mutex::new(Vec::new());

/// A device that no rehearsal uses at the moment.
struct Idle {
    /// The device that it stands for.
    base: Device,
    observed: Device,
    engine: Arc<dyn EngineControl>,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// The remat devices of other processes that this one has been told of.
static SERVED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

fn is_served(plain: &Device) -> bool {
    lock(&SERVED).contains(plain)
}

/// Whether a device without autodiff is a remat device of this process.
pub(crate) fn is_remat(plain: &Device) -> bool {
    matches!(plain.as_dispatch(), DispatchDevice::Remote(_)) && lock(&ENGINES).iter().any(|(known, _)| known == plain)
}

fn engine_of(device: &Device) -> Result<Arc<dyn EngineControl>, RematError> {
    let plain = device.clone().without_autodiff();
    let engines = lock(&ENGINES);
    engines
        .iter()
        .find(|(known, _)| *known == plain)
        .map(|(_, engine)| engine.clone())
        .ok_or_else(|| RematError::NotRemat { device: format!("{device:?}") })
}

/// Work to be done with the backend behind a [`Device`].
trait WithBackend {
    type Output;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<Self::Output, RematError>;
}

fn with_backend<W: WithBackend>(device: &Device, fusion: bool, work: W) -> Result<W::Output, RematError> {
    let unsupported =
        |reason: &str| RematError::UnsupportedDevice { device: format!("{device:?}"), reason: reason.to_owned() };
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) if fusion && crate::cubecl::has_fusion() => {
            work.run::<burn_cubecl::Cube>(device.clone())
        }
        DispatchDevice::Remote(_) => Err(unsupported(
            "it is remote already. Give the budget to the device at its server: in this process with \
             `Device::flex().remat(..)`, on another machine with the `serve` command",
        )),
        _ if fusion => Err(unsupported(
            "it has no kernel fusion. That is there on a GPU, in a build with the feature `fusion`; without `with_fusion()` \
             operations run one by one",
        )),
        DispatchDevice::Flex(device) => work.run::<burn_flex::Flex>(*device),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => work.run::<burn_cubecl::CubeBackend>(device.clone()),
        #[allow(unreachable_patterns)]
        _ => Err(unsupported("use a Flex, wgpu, Vulkan or CUDA device, with the feature of that name")),
    }
}

/// A remat device like `device` for a server, which is started first: where its driver or the card is missing Burn panics.
fn started<B: RematBackend>(device: B::Device, config: RematConfig) -> Result<RematDevice<B::Device>, RematError> {
    catch_unwind(AssertUnwindSafe(|| B::padding(&device))).map_err(|payload| RematError::UnsupportedDevice {
        device: format!("{device:?}"),
        reason: format!(
            "it does not start: {}; what was logged before may say more. Is its driver installed, and the card seen from here (`vulkaninfo --summary`, `nvidia-smi`)?",
            panic_message(&*payload).lines().next().unwrap_or_default().trim_end_matches('.')
        ),
    })?;
    RematDevice::new(device, config.for_server())
}

/// Burn's server for one remat device, without transport or authorizer.
fn backend_server<B: RematBackend>(device: RematDevice<B::Device>) -> BackendServer<Remat<B>> {
    let engine = get_client::<RematChannel<B>>;
    BackendServer::<Remat<B>>::new([device])
        .with_custom_op(MARK, move |_, _, device| engine(device).mark_step())
        .with_custom_op(stage::ENTER, move |_, op, device| {
            if let [name, number, policy] = integers(op)[..]
                && let Ok(name) = name.try_into()
            {
                engine(device).enter_stage(name, number, CheckpointPolicy::of_code(policy));
            }
        })
        .with_custom_op(stage::LEAVE, move |_, op, device| {
            if let [number] = integers(op)[..] {
                engine(device).leave_stage(number);
            }
        })
}

/// The whole numbers that a mark carries.
fn integers(op: &CustomOpIr) -> Vec<i64> {
    let integer = |scalar: &ScalarIr| if let ScalarIr::Int(value) = scalar { Some(*value) } else { None };
    op.scalars.iter().filter_map(integer).collect()
}

/// Serves a remat device like `device` to other processes and machines until Ctrl+C or `SIGTERM`; then returns what it
/// has done.
///
/// `authorizer` decides who may connect: a [`TokenAuthorizer`], or `burn::server::AllowAll` on a trusted network.
///
/// # Errors
///
/// As [`RematExt::remat`], and what keeps the transport from binding.
pub fn serve(
    device: &Device,
    config: impl Into<RematConfig>,
    authorizer: impl PeerAuthorizer,
    transport: impl Into<Transport>,
) -> Result<RematReport, RematError> {
    let config = config.into();
    with_backend(device, config.fusion, Serve { config, authorizer, transport: transport.into() })
}

struct Serve<A> {
    config: RematConfig,
    authorizer: A,
    transport: Transport,
}

impl<A: PeerAuthorizer> WithBackend for Serve<A> {
    type Output = RematReport;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<RematReport, RematError> {
        let device = started::<B>(device, self.config)?;
        let serving = backend_server::<B>(device.clone()).with_authorizer(self.authorizer).serve_async(self.transport);
        ServerLogging::install();
        let (done, wait) = mpsc::channel();
        runtime()?.spawn(async move {
            let served = tokio::select! {
                served = serving => served.map_err(|error| error.to_string()),
                stopped = asked_to_stop() => stopped.map_err(|error| error.to_string()),
            };
            // Who waits is there until it hears of the end.
            let _ = done.send(served);
        });
        let served = wait.recv().unwrap_or_else(|_| Err("its task ended early; the log says why".to_owned()));
        served.map_err(|reason| RematError::Serve { reason })?;
        Ok(device.report::<B>())
    }
}

/// Ctrl+C, or `SIGTERM`.
async fn asked_to_stop() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
        tokio::select! {
            stopped = signal::ctrl_c() => stopped,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    signal::ctrl_c().await
}

/// A configuration for `device`, if it can be: a share of free memory is bytes there.
pub(crate) fn validated_on(device: &Device, config: RematConfig) -> Result<RematConfig, RematError> {
    with_backend(device, config.fusion, Validate { config })
}

struct Validate {
    config: RematConfig,
}

impl WithBackend for Validate {
    type Output = RematConfig;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<RematConfig, RematError> {
        self.config.validated_on(&device)
    }
}

struct ServeInProcess {
    config: RematConfig,
}

impl WithBackend for ServeInProcess {
    type Output = Device;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<Device, RematError> {
        let failed = |reason: String| RematError::Serve { reason };
        let device = started::<B>(device, self.config)?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| failed(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| failed(error.to_string()))?;
        let token = random_token()?;
        let authorizer = TokenAuthorizer::new(token.as_str()).map_err(|error| failed(error.to_string()))?;
        let server = backend_server::<B>(device.clone())
            .with_authorizer(authorizer)
            .serve_async(WebSocketTransport::from_listener(listener));
        runtime()?.spawn(async move {
            if let Err(error) = server.await {
                log::error!("the loopback server of a remat device ended: {error}");
            }
        });
        let host = RemoteHost::websocket(&format!("ws://{address}")).with_credential(token);
        let remote = connect(&host).map_err(failed)?;
        let engine = Arc::new(get_client::<RematChannel<B>>(&device));
        lock(&ENGINES).push((remote.clone(), engine));
        stage::expect_devices();
        Ok(remote)
    }
}

/// Has the clients of this process send operations as the program asks for them.
///
/// In a build with Burn's fusion, clients collect operations into graphs, up to the next read or upload. So the last updates of a step
/// arrived within the next one, in another order, and no two steps looked alike. Burn's configuration bounds the size of such graphs; what the
/// program has set itself stays. Clients of other servers lose their graphs too.
fn send_in_order() {
    if BurnConfig::get().fusion().max_graph_size.is_none() {
        configure(|config| config["fusion"]["max_graph_size"] = 0.into());
    }
}

/// Operations that a client of this process sends to its server in one message. It hands on so many at a time anyway; Burn makes eight
/// messages of these, each with system calls at both ends.
const MESSAGE: usize = 32;

/// Held while Burn's configuration is not as the program has it.
static CONNECTING: Mutex<()> = Mutex::new(());

/// The device of a server of this process. What Burn's configuration says about the size of messages is for this client alone, and what the
/// program has set itself stays.
fn connect(host: &RemoteHost) -> Result<Device, String> {
    let _alone = lock(&CONNECTING);
    send_in_order();
    let configured = BurnConfig::get().remote().flush_threshold;
    let sends = |operations: usize| configure(|config| config["remote"]["flush_threshold"] = operations.into());
    if configured == RemoteConfig::default().flush_threshold {
        sends(MESSAGE);
    }
    let device = Device::remote_options(host).init();
    sends(configured);
    device.map_err(|error| error.to_string())
}

/// Changes Burn's configuration, which it reads from files: its fields are not open to programs.
fn configure(change: impl FnOnce(&mut serde_json::Value)) {
    let changed = serde_json::to_value(&*BurnConfig::get()).and_then(|mut config| {
        change(&mut config);
        serde_json::from_value::<BurnConfig>(config)
    });
    match changed {
        Ok(config) => *BurnConfig::storage().lock() = Some(Arc::new(config)),
        Err(error) => {
            log::warn!(
                "Burn's configuration could not be changed: operations may come out of order in a build with `fusion`, and go \
                 in small messages: {error}"
            )
        }
    }
}

/// A fresh token of 256 random bits, in hexadecimal.
///
/// # Errors
///
/// [`RematError::Serve`] where the system gives no random numbers.
pub fn random_token() -> Result<String, RematError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| RematError::Serve { reason: format!("no random numbers for the token: {error}") })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The runtime of all servers of this process.
///
/// It has one thread, which brings operations in and hands results out; they run on threads of their own. With two, Burn
/// 0.22.1 may wait for ever for a tensor that moves between two servers over WebSocket: the task that looks for the
/// tensor asks to be woken only after it has looked (`get_exposed_tensor_bytes` in burn-communication), and what arrives
/// in between wakes nobody. Tasks of one thread change places only where they wait.
fn runtime() -> Result<&'static Runtime, RematError> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("remat-server")
                .enable_all()
                .build()
                .map_err(|error| error.to_string())
        })
        .as_ref()
        .map_err(|reason| RematError::Serve { reason: reason.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_collect_no_graphs_once_there_is_a_remat_device() {
        let _device = Device::flex().remat("64 MiB").unwrap();
        assert_eq!(BurnConfig::get().fusion().max_graph_size, Some(0));
        // Other clients send messages of the size that they had.
        let _alone = lock(&CONNECTING);
        assert_eq!(BurnConfig::get().remote().flush_threshold, RemoteConfig::default().flush_threshold);
    }
}
