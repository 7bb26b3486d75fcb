//! A proxy between services and PostgreSQL that reads message frames and breaks connections by rule.

mod conversation;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

use tokio::{
    net::TcpListener,
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use crate::Fallible;

/// Relays connections on a port of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

/// Says where a connection is cut, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) at: At,
    pub(crate) cut: Cut,
    /// Between 0 and 1, for each statement that it fits.
    pub(crate) chance: f64,
}

/// Names the statement that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Begin,
    Commit,
    Rollback,
}

/// Says how a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The server never sees the statement; what it says about those before still arrives.
    Before,
    /// The server sees it, and the client nothing more.
    After,
    /// The client sees this many bytes of its answer.
    Answer(usize),
}

/// Says what happens to everything that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    Flows,
    /// It is lost, and no connection ends.
    Vanishes,
    /// Connections are closed, new ones too.
    Refused,
}

type OnCut = Box<dyn Fn(&str) + Send + Sync>;

struct Shared {
    server: AtomicU16,
    rules: Mutex<(Vec<Rule>, fastrand::Rng)>,
    traffic: watch::Sender<Traffic>,
    on_cut: OnCut,
}

impl Proxy {
    /// Starts one before the server at `server`; every cut is told to `on_cut`.
    ///
    /// # Errors
    ///
    /// When there is no port.
    pub(crate) async fn start(
        server: u16,
        seed: u64,
        on_cut: impl Fn(&str) + Send + Sync + 'static,
    ) -> Fallible<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            rules: Mutex::new((Vec::new(), fastrand::Rng::with_seed(seed))),
            traffic: watch::Sender::new(Traffic::Flows),
            on_cut: Box::new(on_cut),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self {
            port,
            shared,
            accepting,
        })
    }

    /// Cuts by these rules from now on.
    pub(crate) fn set_rules(&self, rules: &[Rule]) {
        self.shared.rules().0 = rules.to_vec();
    }

    /// Does this to all traffic from now on.
    pub(crate) fn set_traffic(&self, traffic: Traffic) {
        self.shared.traffic.send_replace(traffic);
    }

    /// Relays new connections to another server, and closes those that there are.
    pub(crate) fn fail_over(&self, server: u16) {
        self.shared.server.store(server, Ordering::SeqCst);
        self.set_traffic(Traffic::Refused);
        self.set_traffic(Traffic::Flows);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn server(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.load(Ordering::SeqCst)).into()
    }

    fn traffic(&self) -> Traffic {
        *self.traffic.borrow()
    }

    /// Rolls the dice for a statement.
    fn cut_at(&self, at: At) -> Option<Cut> {
        let mut rules = self.rules();
        let (rules, rng) = &mut *rules;
        let rule = rules
            .iter()
            .find(|rule| rule.at == at && rng.f64() < rule.chance)?;
        (self.on_cut)(&format!("cut {:?} {:?}", rule.cut, rule.at));
        Some(rule.cut)
    }

    fn rules(&self) -> MutexGuard<'_, (Vec<Rule>, fastrand::Rng)> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Aborted with this task, the relays go with it.
    let mut relays = JoinSet::new();
    loop {
        while relays.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let shared = Arc::clone(&shared);
        relays.spawn(async move { conversation::relay(client, &shared).await });
    }
}
