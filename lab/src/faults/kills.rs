//! F1 and F2: service processes and database sessions that are ended from outside.

use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Duration, sleep, timeout};

use super::{
    Lab,
    load::{Load, Mix},
    trial::{Allowing, Plan, Trial, Verdict},
};
use crate::{Fallible, rig::database::SERVICE_SESSIONS, service::Step};

/// F1: SIGKILL at random moments, and a new process at the same address.
pub(super) async fn service_killed(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F1", Plan::default()).await?;
    let load = Load::start(&mut trial, &Mix::default());
    let end = Instant::now() + lab.time(7.0, 90.0);
    while Instant::now() < end {
        sleep(Duration::from_micros(trial.rng.u64(20_000..120_000))).await;
        trial.history.fault("SIGKILL for the service");
        for service in &mut trial.services {
            service.kill().await?;
            service.restart().await?;
        }
    }
    load.stop().await;
    trial.end(Allowing::default()).await
}

/// F2: sessions that are terminated, cancelled or killed, in their statements, between them, and inside COMMIT.
pub(super) async fn sessions_killed(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F2", Plan::default()).await?;
    let mix = Mix {
        after: |rng| match rng.u8(0..4) {
            0 => vec![Step::Sleep(rng.u64(1..8))],
            // A check at COMMIT that takes its time.
            1 => vec![Step::Sql(format!(
                "INSERT INTO late VALUES ({})",
                rng.u8(1..15)
            ))],
            _ => Vec::new(),
        },
        ..Mix::default()
    };
    let load = Load::start(&mut trial, &mix);
    let end = Instant::now() + lab.time(7.0, 90.0);
    let mut next_crash = Instant::now() + Duration::from_secs(1);
    let mut server = trial.database.connect().await?;
    let mut crashes = 0;
    while Instant::now() < end {
        sleep(Duration::from_millis(trial.rng.u64(2..12))).await;
        let whom = if trial.rng.bool() {
            "state = 'active' AND query = 'COMMIT'"
        } else {
            "state <> 'idle'"
        };
        if Instant::now() > next_crash {
            next_crash = Instant::now() + Duration::from_secs(3);
            let pid = format!("SELECT pid FROM {SERVICE_SESSIONS} LIMIT 1");
            if let Some(row) = server.query_opt(&pid, &[]).await? {
                trial.history.fault("SIGKILL for a backend");
                let pid = Pid::from_raw(row.get(0)).ok_or("no such process")?;
                kill_process(pid, Signal::KILL)?;
                crashes += 1;
                // The others end a moment later, and ours with them.
                let ended = async {
                    while !server.is_closed() {
                        sleep(Duration::from_millis(5)).await;
                    }
                };
                timeout(Duration::from_secs(10), ended)
                    .await
                    .map_err(|_| "the server did not notice that a backend was killed")?;
                server = trial.database.connect().await?;
            }
            continue;
        }
        let how = if trial.rng.bool() {
            "pg_terminate_backend"
        } else {
            "pg_cancel_backend"
        };
        let one =
            format!("SELECT pid FROM {SERVICE_SESSIONS} AND {whom} ORDER BY random() LIMIT 1");
        let struck = format!("SELECT {how}(pid) FROM ({one}) AS one");
        if server.query_opt(&struck, &[]).await?.is_some() {
            trial.history.fault(&format!("{how} where {whom}"));
        }
    }
    load.stop().await;
    drop(server);
    trial.expect(crashes > 0, "no backend was killed");
    trial.end(Allowing::default()).await
}
