//! F16 and F17: the end of records' lifetimes, and clocks that are wrong.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::time::sleep;

use super::{
    Lab,
    checker::BRIEF,
    history::{Outcome, Request},
    load::{Load, Mix},
    report::Missing,
    trial::{Allowing, Plan, Trial, Verdict},
};
use crate::{Fallible, service::Order};

/// F16: repeats around the end of a record's lifetime, by several clients of two instances, while both sweep.
pub(super) async fn expiry(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        sweep: Some(Duration::from_millis(40)),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F16", plan).await?;
    let end = Instant::now() + lab.time(7.0, 90.0);
    bursts(&mut trial, 24, end).await;
    let effects = trial
        .database
        .number("SELECT count(*) FROM effects")
        .await?;
    trial.note(format!(
        "{effects} effects of 24 keys, one in each lifetime"
    ));
    trial.expect(effects > 24, "no lifetime has ended");
    trial.end(Allowing::default()).await
}

/// Sends bursts around the ends of lifetimes of some keys.
pub(super) async fn bursts(trial: &mut Trial, keys: usize, end: Instant) {
    let keys: Vec<_> = (0..keys)
        .map(|_| (trial.fresh("/brief", Order::default()), trial.rng.fork()))
        .collect();
    let trial = &*trial;
    let around = keys
        .into_iter()
        .map(|(request, rng)| around_the_end(trial, request, rng, end));
    join_all(around).await;
}

/// Repeats a request in bursts of four, closely before and after the end of each lifetime.
async fn around_the_end(
    trial: &Trial,
    request: Arc<Request>,
    mut rng: fastrand::Rng,
    end: Instant,
) {
    let mut ends = Instant::now();
    while Instant::now() < end {
        let burst = (0..4).map(|number| {
            let (request, pause) = (
                Arc::clone(&request),
                Duration::from_micros(rng.u64(0..8000)),
            );
            async move {
                sleep(pause).await;
                // Some handlers take most of the lifetime.
                let steps = if number == 0 {
                    "x-before: [{\"sleep\": 300}]\r\n"
                } else {
                    ""
                };
                trial
                    .client
                    .line(number)
                    .attempt_with(&request, steps)
                    .await
            }
        });
        trial
            .history
            .fault("a burst of repeats around the end of a lifetime");
        let answers = join_all(burst.collect::<Vec<_>>()).await;
        let fresh = answers.iter().any(|outcome| matches!(outcome, Outcome::Answer(reply) if reply.status == 201 && !reply.replayed));
        if fresh {
            ends = Instant::now() + BRIEF;
        }
        let around = ends + Duration::from_millis(rng.u64(0..30));
        let pause = around.saturating_duration_since(Instant::now() + Duration::from_millis(15));
        // Between two ends, one repeat comes in the middle.
        if rng.bool() && pause > Duration::from_millis(200) {
            sleep(pause / 2).await;
            trial.client.once(0, &request).await;
            sleep(pause / 2).await;
        } else {
            sleep(pause.max(Duration::from_millis(2))).await;
        }
    }
}

/// F17: the service's clock is a day ahead, or behind.
pub(super) async fn wrong_clock(lab: &Lab) -> Fallible<Verdict> {
    if !super::is_installed("faketime") {
        return Err(Missing(
            "the program `faketime` is missing: apt-get install faketime".to_owned(),
        )
        .into());
    }
    let ahead = one_clock(lab, "+1 day").await?;
    Ok(ahead.and(one_clock(lab, "-1 day").await?))
}

async fn one_clock(lab: &Lab, offset: &str) -> Fallible<Verdict> {
    let plan = Plan {
        wrapper: ["faketime", "-f", &offset.replace(" day", "d")]
            .map(ToOwned::to_owned)
            .to_vec(),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F17", plan).await?;
    let load = Load::start(&mut trial, &Mix::default());
    let end = Instant::now() + lab.time(1.5, 30.0);
    let mut wrong_clocks = 0;
    while Instant::now() < end {
        trial.history.fault("a clock that is a day off");
        // A record's lifetime is the database's business.
        let request = trial.fresh("/brief", Order::sleeping(5));
        let first = trial.client.once(0, &request).await;
        sleep(BRIEF / 2).await;
        let second = trial.client.once(0, &request).await;
        let replayed = matches!(&second, Outcome::Answer(reply) if reply.replayed);
        trial.expect(
            first.status() == Some(201) && replayed,
            format!("half a lifetime later, with the clock {offset}: {second:?}"),
        );
        let today = date(&trial).await?;
        let day = format!(
            "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '{offset}', 'Dy, DD Mon YYYY')"
        );
        let day: String = trial
            .database
            .query(&day)
            .await?
            .first()
            .ok_or("no day")?
            .get(0);
        wrong_clocks += usize::from(today.starts_with(&day));
    }
    load.stop().await;
    trial.expect(
        wrong_clocks > 0,
        "the service's clock was right: the fault did not take hold",
    );
    trial.end(Allowing::default()).await
}

/// The date in an answer of the service.
async fn date(trial: &Trial) -> Fallible<String> {
    let mut connection = trial.client.line(0).open().await?;
    connection
        .send("GET /pool HTTP/1.1\r\nhost: lab\r\n\r\n")
        .await?;
    let answer = connection.receive().await?;
    Ok(answer.header("date").unwrap_or_default().to_owned())
}
