//! Hosts a device with a memory budget for other processes and machines, through Burn's own remote server.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use burn::server::{AllowAll, IrohIdentity, IrohRelays, IrohTransport, TokenAuthorizer, Transport, WebSocketTransport};
use burn_remat::{AdvancedConfig, Budget, RematConfig, RematReport, random_token, serve};
use burn_remat_examples::device;
use clap::Parser;

/// Serve a remat device. Clients connect with Burn's `Device::remote_options`.
#[derive(Parser)]
struct Arguments {
    /// flex, wgpu, vulkan or cuda.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Memory budget: `8 GiB`, `512MB`, bytes, `60%` of the first step's peak, `80% free` of the device's free
    /// memory, or `unlimited`.
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    /// Run operations through Burn's kernel fusion (on a GPU, in a build with the feature `fusion`).
    #[arg(long)]
    fusion: bool,
    /// Serve unencrypted WebSocket on this address instead of Iroh; for a trusted network.
    #[arg(long, value_name = "ADDR")]
    websocket: Option<SocketAddr>,
    /// Admit every client, without a token.
    #[arg(long, conflicts_with = "token")]
    allow_any: bool,
    /// The token that clients must present. Default: a random one, which is printed.
    #[arg(long, env = "REMAT_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Iroh: the file with the server's key, so that its id stays the same. Default: a new key.
    #[arg(long, conflicts_with = "websocket")]
    identity: Option<PathBuf>,
    /// Iroh: UDP port to bind. Needed with `--no-relays`.
    #[arg(long, conflicts_with = "websocket")]
    port: Option<u16>,
    /// Iroh: do not use public relays; clients dial this machine's address and port.
    #[arg(long, conflicts_with = "websocket", requires = "port")]
    no_relays: bool,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn,highs=error")).init();
    match run(&Arguments::parse()) {
        Ok(report) => {
            println!("\n{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<RematReport, String> {
    let budget: Budget = arguments.budget.parse().map_err(|error| format!("--budget: {error}"))?;
    let device = device::by_name(&arguments.device)?;
    let transport = match arguments.websocket {
        Some(address) => websocket(address)?,
        None => iroh(arguments)?,
    };
    let config = RematConfig::new(budget);
    let config = if arguments.fusion { config.advanced(AdvancedConfig::with_fusion) } else { config };
    let served = if arguments.allow_any {
        eprintln!("warning: --allow-any lets every client that reaches this address use the device and its memory");
        serve(&device, config, AllowAll, transport)
    } else {
        let token = match &arguments.token {
            Some(token) => token.clone(),
            None => {
                let token = random_token().map_err(|error| error.to_string())?;
                println!("token: {token}");
                token
            }
        };
        let authorizer = TokenAuthorizer::new(token).map_err(|error| format!("--token: {error}"))?;
        serve(&device, config, authorizer, transport)
    };
    served.map_err(|error| error.to_string())
}

fn websocket(address: SocketAddr) -> Result<Transport, String> {
    let listener = TcpListener::bind(address).map_err(|error| format!("--websocket {address}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    if !address.ip().is_loopback() {
        eprintln!("warning: WebSocket is not encrypted: serve it on a trusted network only, or use Iroh");
    }
    println!("serving on ws://{address}");
    Ok(WebSocketTransport::from_listener(listener).into())
}

fn iroh(arguments: &Arguments) -> Result<Transport, String> {
    let identity = match &arguments.identity {
        Some(file) => {
            IrohIdentity::load_or_create(file).map_err(|error| format!("--identity {}: {error}", file.display()))?
        }
        None => IrohIdentity::random(),
    };
    println!("serving over Iroh as {}", identity.id());
    let mut transport = IrohTransport::new(identity);
    if let Some(port) = arguments.port {
        transport = transport.with_port(port);
    }
    if arguments.no_relays {
        transport = transport.with_relays(IrohRelays::Disabled);
    }
    Ok(transport.into())
}
