//! The scheduler of a cluster.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::utils::default_session_builder;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion::execution::FunctionRegistry;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;

use crate::error::{Error, Result};
use crate::models::Models;

/// How a scheduler runs.
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// The address on which it listens; port 0 is any that is free.
    pub bind: SocketAddr,
    /// The host name under which executors and clients reach it.
    pub external_host: String,
    /// After how long an executor that does not report is given up, and its work given to others. A busy executor reports
    /// every 5 seconds.
    pub executor_timeout: Duration,
}

/// Runs a scheduler whose plans may call the functions of `models`. `on_ready` is called with its address when it
/// listens. It does not return by itself.
///
/// # Errors
/// An address on which it cannot listen.
pub async fn run_scheduler(
    models: &Models,
    options: SchedulerOptions,
    on_ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let node = format!("scheduler {}", options.bind);
    let failed = |reason: String| Error::Cluster { node: node.clone(), reason };
    let listener = TcpListener::bind(options.bind).await.map_err(|e| failed(e.to_string()))?;
    let address = listener.local_addr().map_err(|e| failed(e.to_string()))?;
    let models = models.clone().with_node(format!("scheduler {address}"));
    let session = move |config: SessionConfig| {
        let mut state = default_session_builder(config)?;
        for function in models.functions() {
            state.register_udf(Arc::new(function))?;
        }
        Ok(state)
    };
    let seconds = options.executor_timeout.as_secs().max(1);
    let config = SchedulerConfig {
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        external_host: options.external_host,
        scheduling_policy: TaskSchedulingPolicy::PullStaged,
        executor_timeout_seconds: seconds,
        expire_dead_executor_interval_seconds: (seconds / 4).max(1),
        no_executors_grace_period_seconds: seconds,
        override_session_builder: Some(Arc::new(session)),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await.map_err(|e| failed(e.to_string()))?;
    let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config)).await;
    let scheduler = scheduler.map_err(|e| failed(e.to_string()))?;
    on_ready(address);
    start_grpc_service_with_listener(listener, scheduler).await.map_err(|e| failed(e.to_string()))
}
