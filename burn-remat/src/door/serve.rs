//! Remat devices for other processes and machines, through Burn's remote server.

use std::sync::{Mutex, OnceLock, mpsc};

use burn::backend::DispatchDevice;
use burn::remote::CustomOpClient;
use burn::server::{PeerAuthorizer, Transport};
use burn::tensor::Device;
use burn_ir::CustomOpIr;
use burn_remote::server::{BackendServer, ServerLogging};
use burn_router::get_client;
use tokio::runtime::Runtime;
use tokio::signal;

use super::backends::{WithBackend, started, with_backend};
use super::client::{Remat, RematChannel};
use super::control::EngineControl;
use crate::backend::RematBackend;
use crate::config::RematConfig;
use crate::error::RematError;
use crate::panics::lock;
use crate::report::RematReport;

/// The operation, without inputs and outputs, that marks a step in order with the others.
const MARK: &str = "remat.mark";

/// Remat devices that other processes serve, as far as this process has been told.
static SERVED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// Remembers that another process serves `plain` as a remat device.
pub(super) fn remember(plain: Device) {
    let mut served = lock(&SERVED);
    if !served.contains(&plain) {
        served.push(plain);
    }
}

/// Sends a step mark to `plain`, if another process serves it as a remat device.
pub(super) fn mark_step(plain: &Device) {
    if let DispatchDevice::Remote(remote) = plain.as_dispatch()
        && lock(&SERVED).contains(plain)
    {
        // A fusing client may hold operations back. They belong before the mark.
        let _ = plain.flush();
        let _ = CustomOpClient::new(remote).register(CustomOpIr::new(MARK, &[], &[]));
    }
}

/// Serves a remat device like `device` to other processes and machines until Ctrl+C or `SIGTERM`, and then returns its
/// report.
///
/// `authorizer` decides who may connect: a [`TokenAuthorizer`](burn::server::TokenAuthorizer), or `burn::server::AllowAll` on a trusted network.
///
/// # Errors
///
/// Those of [`RematExt::remat`](crate::RematExt::remat), and [`RematError::Serve`] if the transport cannot bind.
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
        let engine = get_client::<RematChannel<B>>;
        let serving = BackendServer::<Remat<B>>::new([device.clone()])
            .with_custom_op(MARK, move |_, _, device| engine(device).mark_step())
            .with_authorizer(self.authorizer)
            .serve_async(self.transport);
        ServerLogging::install();
        let (done, wait) = mpsc::channel();
        runtime()?.spawn(async move {
            let served = tokio::select! {
                served = serving => served.map_err(|error| error.to_string()),
                stopped = asked_to_stop() => stopped.map_err(|error| error.to_string()),
            };
            // The receiver waits until it gets this.
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

/// A fresh token of 256 random bits, in hexadecimal.
///
/// # Errors
///
/// [`RematError::Serve`] if the system gives no random numbers.
pub fn random_token() -> Result<String, RematError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| RematError::Serve { reason: format!("no random numbers for the token: {error}") })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The runtime of all servers of this process.
///
/// It has one thread, which receives operations and sends results; the operations run on threads of their own. With two threads, Burn 0.22.1 may wait
/// forever for a tensor that moves between two servers over WebSocket: the task that looks for the tensor asks to be woken only after it has looked
/// (`get_exposed_tensor_bytes` in burn-communication), and a tensor that arrives in between wakes nobody. With one thread, tasks switch only where they
/// wait.
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
