//! Starts a cluster and says which server it runs, or what this machine lacks: `cargo run -p idem-cluster --example check`.

use std::process::ExitCode;

use idem_cluster::{Cluster, ClusterError};

fn main() -> ExitCode {
    match version() {
        Ok(version) => {
            println!("PostgreSQL {version}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn version() -> Result<String, ClusterError> {
    Cluster::start()?.run_sql("postgres", "SHOW server_version")
}
