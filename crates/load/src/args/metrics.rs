//! Figures for Prometheus.

use super::values::Pair;

/// Figures for Prometheus.
#[derive(Clone, Debug, clap::Args)]
pub struct MetricsArgs {
    /// Serve the figures of the run for Prometheus
    #[arg(long)]
    pub metrics_prometheus: bool,
    /// Port they are served on
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub metrics_prometheus_port: u16,
    /// Path they are served under
    #[arg(long, value_name = "PATH", default_value = "/metrics")]
    pub metrics_prometheus_endpoint: String,
    /// What their names begin with
    #[arg(long, value_name = "PREFIX", default_value = "perftest_")]
    pub metrics_prefix: String,
    /// Labels of all of them, such as env=test
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub metrics_tags: Vec<Pair>,
    /// Further figures that do not change, such as expected_published=50000
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub exposed_metrics: Vec<Pair>,
    /// Add a figure whose label is the command line
    #[arg(long)]
    pub metrics_command_line_arguments: bool,
}
