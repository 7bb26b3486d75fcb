//! The runtime that drives connections to servers: one for all pools, as long as the process lives.

use std::{
    io,
    num::NonZero,
    sync::{Mutex, PoisonError},
    thread::available_parallelism,
};

use tokio::runtime::{Builder, Handle};

use crate::error::SettingsError;

/// Leads to the runtime, which is started when it is first asked for.
///
/// # Errors
///
/// When the system gives it no threads.
pub(super) fn handle() -> Result<Handle, SettingsError> {
    start().map_err(|error| SettingsError::Pool(error.to_string()))
}

fn start() -> io::Result<Handle> {
    static DRIVER: Mutex<Option<Handle>> = Mutex::new(None);
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = &*driver {
        return Ok(driver.clone());
    }
    let threads = available_parallelism()
        .map_or(1, NonZero::get)
        .div_ceil(2)
        .min(4);
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("idem-postgres")
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    *driver = Some(handle.clone());
    // Dropping it would end all connections.
    std::mem::forget(runtime);
    Ok(handle)
}
