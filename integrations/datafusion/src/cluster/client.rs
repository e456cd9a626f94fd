//! Sessions whose queries run on a cluster.

use std::sync::Arc;

use ballista::prelude::{SessionConfigExt, SessionContextExt};
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::serde::protobuf::CancelJobParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use datafusion::common::Result;
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::protobuf::LogicalPlanNode;

use crate::error::Error;
use crate::models::Models;

/// A session whose queries run on the cluster of the scheduler at `url`, `df://host:port`, with the functions registered.
///
/// `set` changes the configuration, which travels with each query.
///
/// # Errors
/// A URL without a host. Whether the scheduler is there, a query finds out.
pub async fn connect(
    url: &str,
    models: &Models,
    set: impl FnOnce(SessionConfig) -> SessionConfig,
) -> Result<SessionContext> {
    let ctx = SessionContext::remote_with_state(url, state(set(SessionConfig::new_with_ballista()), models)?).await?;
    // Connecting replaces the functions by Ballista's own.
    models.register(&ctx);
    Ok(ctx)
}

/// A session with a cluster of its own in this process: a scheduler and an executor with `vcores` threads, on ports of
/// 127.0.0.1 that are free. It ends with the process.
///
/// # Errors
/// Ports that cannot be opened.
pub async fn standalone(models: &Models, vcores: usize) -> Result<SessionContext> {
    let config = SessionConfig::new_with_ballista().with_ballista_standalone_parallelism(vcores);
    let ctx = SessionContext::standalone_with_state(state(config, models)?).await?;
    models.register(&ctx);
    Ok(ctx)
}

/// A session state with the functions, from which Ballista's nodes of this process take theirs.
fn state(config: SessionConfig, models: &Models) -> Result<SessionState> {
    let mut state = SessionStateBuilder::new().with_config(config).with_default_features().build();
    for function in models.functions() {
        state.register_udf(Arc::new(function))?;
    }
    Ok(state)
}

/// A query that was sent to a cluster.
#[derive(Clone)]
pub struct Submitted {
    url: String,
    plan: Arc<dyn ExecutionPlan>,
}

impl Submitted {
    /// The query of a physical plan of a session that [`connect`] made with `url`.
    pub fn new(url: &str, plan: Arc<dyn ExecutionPlan>) -> Self {
        Self { url: url.to_string(), plan }
    }

    /// Ends the query on the cluster, if it has begun there.
    ///
    /// # Errors
    /// A scheduler that cannot be reached.
    pub async fn cancel(&self) -> crate::Result<()> {
        let job = self.plan.downcast_ref::<DistributedQueryExec<LogicalPlanNode>>().and_then(|query| query.job_id());
        let Some(job) = job else { return Ok(()) };
        let failed = |reason: String| Error::Cluster { node: format!("scheduler {}", self.url), reason };
        let url = self.url.replacen("df://", "http://", 1);
        let mut scheduler = SchedulerGrpcClient::connect(url).await.map_err(|e| failed(e.to_string()))?;
        let job_id = job.to_string();
        scheduler.cancel_job(CancelJobParams { job_id }).await.map_err(|e| failed(e.to_string()))?;
        Ok(())
    }
}
