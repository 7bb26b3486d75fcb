//! The service under test as a process of its own, so that tests can kill it.

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    idem_tests::service::serve_as_process().await
}
