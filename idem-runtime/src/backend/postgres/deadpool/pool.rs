//! A pool whose connections outlive the actix worker that opened them.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_postgres::{
    Client, Config, Error, NoTls, Socket,
    tls::{MakeTlsConnect, TlsConnect},
};
use tokio_util::context::TokioContext;

use crate::{
    backend::{self, driver},
    error::SettingsError,
};

/// Begins to open a pool for a connection string (`postgres://user:password@host/database`).
///
/// On a graceful stop an actix worker without requests exits at once and takes every connection
/// with it that it has opened, while other workers still use them. This pool drives connections on
/// a runtime of its own, and its waits are bounded.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = idem_runtime::postgres::pool("postgres://localhost/shop").max_size(8).open()?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn pool(url: &str) -> PoolBuilder<NoTls> {
    PoolBuilder {
        url: url.to_owned(),
        tls: NoTls,
        max_size: 16,
        wait: Duration::from_secs(5),
    }
}

/// Opens a pool; see [`pool`].
#[derive(Clone)]
pub struct PoolBuilder<T> {
    url: String,
    tls: T,
    max_size: usize,
    wait: Duration,
}

impl<T> PoolBuilder<T> {
    /// Sets the largest number of connections (default 16).
    #[must_use]
    pub fn max_size(mut self, connections: usize) -> Self {
        self.max_size = connections;
        self
    }

    /// Sets how long a request waits for a free connection before it is answered 503 (default
    /// 5 s).
    #[must_use]
    pub fn wait_timeout(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Encrypts connections, with a connector of `postgres-native-tls`, `tokio-postgres-rustls`
    /// or the like. Without one, a connection string that demands TLS fails.
    #[must_use]
    pub fn tls<U>(self, tls: U) -> PoolBuilder<U> {
        let Self {
            url,
            max_size,
            wait,
            ..
        } = self;
        PoolBuilder {
            url,
            tls,
            max_size,
            wait,
        }
    }
}

impl<T> PoolBuilder<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    /// Opens the pool. It connects when a connection is needed, not yet.
    ///
    /// # Errors
    ///
    /// When the connection string cannot be read, or a limit is zero.
    pub fn open(self) -> Result<Pool, SettingsError> {
        let Self {
            url,
            tls,
            max_size,
            wait,
        } = self;
        if max_size == 0 {
            return Err(SettingsError::Zero("the pool's `max_size`"));
        }
        if wait.is_zero() {
            return Err(SettingsError::Zero("the pool's `wait_timeout`"));
        }
        let mut config: Config = url.parse().map_err(|error: Error| {
            SettingsError::Url(
                std::error::Error::source(&error)
                    .unwrap_or(&error)
                    .to_string(),
            )
        })?;
        // Without limits a network that swallows packets would hold a connection for ever.
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(15));
        }
        let runtime = driver::handle()?;
        let manager = Manager::from_connect(
            config,
            OwnRuntime { tls, runtime },
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        Pool::builder(manager)
            .runtime(Runtime::Tokio1)
            .max_size(max_size)
            .wait_timeout(Some(wait))
            .create_timeout(Some(Duration::from_secs(10)))
            .recycle_timeout(Some(Duration::from_secs(5)))
            .build()
            .map_err(|error| SettingsError::Pool(error.to_string()))
    }
}

/// Connects and drives connections on the framework's runtime.
struct OwnRuntime<T> {
    tls: T,
    runtime: Handle,
}

impl<T> Connect for OwnRuntime<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(
        &self,
        config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        let (tls, config) = (self.tls.clone(), config.clone());
        #[cfg(feature = "__seeded")]
        if crate::seeded::is("connections-of-workers") {
            return Box::pin(async move {
                let (client, connection) = config.connect(tls).await?;
                Ok((client, tokio::spawn(async move { drop(connection.await) })))
            });
        }
        Box::pin(async move {
            // A socket belongs to the runtime that it was opened on, so that has to be this one.
            let connect = async move { config.connect(tls).await };
            let (client, connection) = TokioContext::new(connect, self.runtime.clone()).await?;
            // Woken by the first of several messages that belong together, it lets the others come
            // and sends them all in one segment.
            let mut connection = connection;
            let mut gathering = false;
            let connection = poll_fn(move |context| {
                gathering = !gathering;
                if gathering {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Pin::new(&mut connection).poll(context)
            });
            let driven = self.runtime.spawn(async move {
                if let Err(error) = connection.await {
                    backend::lost();
                    tracing::debug!(%error, "a database connection has ended");
                }
            });
            Ok((client, driven))
        })
    }
}

impl<T> fmt::Debug for PoolBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The connection string may hold a password.
        f.debug_struct("PoolBuilder")
            .field("max_size", &self.max_size)
            .finish_non_exhaustive()
    }
}
