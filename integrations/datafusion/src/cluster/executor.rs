//! An executor of a cluster.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_executor::health::ExecutorHealth;
use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::models::Models;

/// How an executor runs.
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// The host of the scheduler.
    pub scheduler_host: String,
    /// The port of the scheduler.
    pub scheduler_port: u16,
    /// The address on which it listens for those that fetch results; port 0 is any that is free.
    pub bind: SocketAddr,
    /// The host name under which others reach it; `None` is the address from which it connects to the scheduler.
    pub external_host: Option<String>,
    /// The folder for results.
    pub work_dir: PathBuf,
    /// The number of tasks that run at a time. One text batch is encoded at a time, by all cores, so that more than two
    /// tasks only read and write beside it.
    pub concurrent_tasks: usize,
    /// For how long the scheduler is waited for.
    pub connect_timeout: Duration,
}

/// Runs an executor with the functions of `models` until it gets SIGINT or SIGTERM, or until it has lost the scheduler.
/// `on_ready` is called with its address when the scheduler knows it.
///
/// # Errors
/// An address on which it cannot listen; a scheduler that is not there.
pub async fn run_executor(
    models: &Models,
    options: ExecutorOptions,
    on_ready: impl FnOnce(SocketAddr) + Send + 'static,
) -> Result<()> {
    let failed = |reason: String| Error::Cluster { node: format!("executor {}", options.bind), reason };
    let address = free_address(options.bind).map_err(|e| failed(e.to_string()))?;
    let mut functions = BallistaFunctionRegistry::default();
    for function in models.clone().with_node(format!("executor {address}")).functions() {
        functions.scalar_functions.insert(function.name().to_string(), Arc::new(function));
    }
    wait_for_scheduler(&options).await.map_err(failed)?;
    let health = ExecutorHealth::new();
    let work_dir = options
        .work_dir
        .to_str()
        .ok_or_else(|| Error::value("the work directory", options.work_dir.display(), "a path that is valid UTF-8"))?;
    let config = ExecutorProcessConfig {
        bind_host: host(address.ip()),
        port: address.port(),
        external_host: options.external_host.clone(),
        scheduler_host: options.scheduler_host.clone(),
        scheduler_port: options.scheduler_port,
        vcores: options.concurrent_tasks.max(1),
        task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
        work_dir: Some(work_dir.to_string()),
        override_function_registry: Some(Arc::new(functions)),
        health: health.clone(),
        ..ExecutorProcessConfig::default()
    };
    let ready = tokio::spawn(async move {
        while !health.is_ready() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        on_ready(address);
    });
    let result = start_executor_process(Arc::new(config)).await;
    ready.abort();
    result.map_err(|e| failed(e.to_string()))
}

/// Waits until the scheduler listens. The timeout of Ballista 55.0 never ends.
async fn wait_for_scheduler(options: &ExecutorOptions) -> std::result::Result<(), String> {
    let (host, port) = (options.scheduler_host.as_str(), options.scheduler_port);
    let started = Instant::now();
    while let Err(error) = TcpStream::connect((host, port)).await {
        if started.elapsed() >= options.connect_timeout {
            return Err(format!("no scheduler at {host}:{port}: {error}"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// The address with a port that is free, which is checked here because Ballista reports a port that is not only in its log.
fn free_address(bind: SocketAddr) -> std::io::Result<SocketAddr> {
    TcpListener::bind(bind)?.local_addr()
}

/// An address as Ballista joins it with a port.
fn host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}
