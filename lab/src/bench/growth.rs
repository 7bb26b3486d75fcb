//! How cost grows with the record table, and which index serves the sweeper.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use idem_cluster::Cluster;
use idem_runtime::{Idempotency, postgres};
use tokio::runtime::Runtime;

use super::{
    contenders::Contender::{Bare, Ours},
    load::{self, Case, Keys, Shape},
    plot::{self, Line},
    report::{Goal, Section},
    service::{Service, Setup},
    spread::Spread,
    turns::{Rig, progress},
};
use crate::Fallible;

/// What a table is filled with.
#[derive(Clone, Copy, Debug)]
struct Filling {
    rows: u64,
    keys: Keys,
    /// Whether lifetimes are of an hour, a day and a week, or all of a day.
    mixed: bool,
    /// The indexes that the sweeper is tried with, one after the other.
    indexes: &'static [&'static str],
}

/// The sweeper's index as it is, and as it could be.
const BTREE: &str = "btree";
const BRIN: &str = "brin";

/// What was seen with one filling and one index.
struct Grown {
    filling: Filling,
    index: &'static str,
    ours: f64,
    of_bare: Spread,
    p99: f64,
    after_checkpoint: f64,
    warm: f64,
    /// The table, its primary key and the sweeper's index, in MB.
    sizes: [f64; 3],
    while_sweeping: f64,
    /// Of those that were left; none if the load had let all be swept.
    swept_a_second: Option<f64>,
    idle_sweep: Duration,
}

/// Fills tables and measures in them.
///
/// # Errors
///
/// When the database or a contender fails.
pub(super) fn growth(
    cluster: &Cluster,
    runtime: &Runtime,
    sqlite: &Path,
    full: bool,
    (rounds, length): (usize, Duration),
    plots: Option<&Path>,
) -> Fallible<Section> {
    let usual = |rows| Filling {
        rows,
        keys: Keys::Random,
        mixed: false,
        indexes: &[BTREE],
    };
    let both = &[BTREE, BRIN];
    let fillings = if full {
        let some = usual(1_000_000);
        vec![
            usual(0),
            some,
            Filling {
                keys: Keys::Ordered,
                ..some
            },
            Filling {
                mixed: true,
                indexes: both,
                ..some
            },
            Filling {
                indexes: both,
                ..usual(10_000_000)
            },
        ]
    } else {
        vec![usual(0), usual(100_000)]
    };
    let mut grown = Vec::new();
    for (number, filling) in fillings.iter().enumerate() {
        let database = format!("grown_{number}");
        cluster.create_database(&database)?;
        let service = Service::start(&Setup {
            database: cluster.url(&database),
            sqlite: sqlite.to_owned(),
        })?;
        let rig = Rig {
            cluster,
            service: &service,
            runtime,
            rounds,
            length,
        };
        progress("filling a table", number + 1, fillings.len() + 1);
        grown.extend(fill_and_measure(&rig, &database, *filling)?);
        drop(service);
        cluster.drop_database(&database)?;
    }
    report(&grown, plots)
}

fn fill_and_measure(rig: &Rig, database: &str, filling: Filling) -> Fallible<Vec<Grown>> {
    let sql = |text: &str| rig.cluster.run_sql(database, text);
    let case = Case {
        keys: filling.keys,
        ..Case::usual(Ours, Shape::Fresh)
    };
    // A record to take after.
    rig.runtime
        .block_on(load::some(rig.service.address, case, 1))?;
    sql("CREATE TABLE pattern AS SELECT * FROM idem.records LIMIT 1;
         ALTER TABLE idem.records DROP CONSTRAINT records_pkey;
         DROP INDEX idem.records_expires_at")?;
    let Filling { rows, mixed, .. } = filling;
    let expired = rows / 30;
    if rows > 0 {
        let old = if mixed {
            "n % 30 = 0".to_owned()
        } else {
            format!("n < {expired}")
        };
        sql(&fill(filling, 0, rows, &old))?;
    }
    sql("ALTER TABLE idem.records ADD PRIMARY KEY (scope, operation, key, request)")?;

    let mut grown = Vec::new();
    for (number, index) in filling.indexes.iter().enumerate() {
        if number > 0 {
            // Into the room that the first ones have left.
            sql(&fill(filling, rows * number as u64, expired, "true"))?;
        }
        sql("DROP INDEX IF EXISTS idem.records_expires_at")?;
        sql(&format!(
            "CREATE INDEX records_expires_at ON idem.records USING {index} (expires_at)"
        ))?;
        sql("VACUUM (ANALYZE) idem.records")?;
        grown.push(measure(rig, database, case, filling, index)?);
    }
    Ok(grown)
}

fn measure(
    rig: &Rig,
    database: &str,
    case: Case,
    filling: Filling,
    index: &'static str,
) -> Fallible<Grown> {
    let what = format!("{} records, {index}", filling.rows);
    let bare = Case {
        contender: Bare,
        ..case
    };
    let series = rig.closed(&what, &[bare, case])?;
    let [bare, ours] = series.as_slice() else {
        return Err("not every contender was measured".into());
    };
    rig.cluster.run_sql(database, "CHECKPOINT")?;
    let log = || log_a_request(rig, database, case);
    let (after_checkpoint, warm) = (log()?, log()?);
    let megabytes = |relation: &str| -> Fallible<f64> {
        let asked = format!("SELECT pg_relation_size('idem.{relation}') / 1e6");
        Ok(rig.cluster.run_sql(database, &asked)?.parse()?)
    };
    let sizes = [
        megabytes("records")?,
        megabytes("records_pkey")?,
        megabytes("records_expires_at")?,
    ];

    let pool = {
        let _entered = rig.runtime.enter();
        postgres::pool(&rig.cluster.url(database))
            .max_size(2)
            .open()?
    };
    let idempotency = Idempotency::new(pool)?;
    let while_sweeping = {
        let _entered = rig.runtime.enter();
        let _sweeper = idempotency.sweep_every(Duration::from_millis(50));
        let load = load::closed(rig.service.address, case, rig.length);
        rig.runtime.block_on(load)?.per_second()
    };
    let began = Instant::now();
    let swept = rig.runtime.block_on(idempotency.sweep())?;
    let took = began.elapsed().as_secs_f64();
    let swept_a_second = (swept > 0).then(|| swept as f64 / took);
    let mut idle = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        rig.runtime.block_on(idempotency.sweep())?;
        idle.push(began.elapsed().as_secs_f64());
    }
    Ok(Grown {
        filling,
        index,
        ours: ours.spread(|shown| shown.per_second).median,
        of_bare: ours.beside(bare, |shown| shown.per_second),
        p99: ours.spread(|shown| shown.p99).median,
        after_checkpoint,
        warm,
        sizes,
        while_sweeping,
        swept_a_second,
        idle_sweep: Duration::from_secs_f64(Spread::of(idle).median),
    })
}

/// Bytes of write-ahead log a first request.
fn log_a_request(rig: &Rig, database: &str, case: Case) -> Fallible<f64> {
    let written = || -> Fallible<f64> {
        let asked = "SELECT pg_current_wal_insert_lsn() - '0/0'";
        Ok(rig.cluster.run_sql(database, asked)?.parse()?)
    };
    let before = written()?;
    let load = load::closed(rig.service.address, case, rig.length);
    let requests = rig.runtime.block_on(load)?.times.len() as f64;
    Ok((written()? - before) / requests)
}

/// Records with keys as the load makes them; those for which `expired` holds have ended a minute ago, the others were
/// made during the last hour, one after the other.
fn fill(filling: Filling, from: u64, rows: u64, expired: &str) -> String {
    let key = match filling.keys {
        Keys::Random => "gen_random_uuid()::text",
        Keys::Ordered => {
            "overlay(overlay(lpad(to_hex(n), 16, '0') placing '-' from 9 for 0) placing '-' from 14 for 0)
             || '-' || substr(md5(n::text), 1, 4) || '-' || substr(md5(n::text), 5, 12)"
        }
    };
    let ttl = if filling.mixed {
        "(ARRAY['2 h', '1 day', '7 days']::interval[])[1 + n % 3]"
    } else {
        "interval '1 day'"
    };
    let made = format!(
        "CASE WHEN {expired} THEN now() - {ttl} - interval '1 minute'
              ELSE now() - interval '1 hour' * (1 - (n - {from})::float8 / {rows}) END"
    );
    format!(
        "INSERT INTO idem.records
         SELECT scope, operation, {key}, request, fingerprint, status, headers, body, {made}, {made} + {ttl}
           FROM pattern, generate_series({from}::bigint, {from}::bigint + {rows}::bigint - 1) AS n"
    )
}

fn report(grown: &[Grown], plots: Option<&Path>) -> Fallible<Section> {
    let mut section = Section::new("How cost grows");
    section.say(
        "First requests over 16 connections beside `bare` on the same database, whose record table was filled before \
         (indexes built at once, so they are denser than grown ones); one record in thirty has expired: the oldest, \
         or, with mixed lifetimes, any. Log bytes are those of a first request right after a checkpoint, where every \
         page that is touched is written as a whole for once, and once pages are warm. An idle sweep finds nothing.",
    );
    let rows = grown.iter().map(|grown| {
        let Filling {
            rows, keys, mixed, ..
        } = grown.filling;
        let [table, key, expiry] = grown.sizes;
        vec![
            format!(
                "{rows}, {}, {}, {}",
                if keys == Keys::Random {
                    "random keys"
                } else {
                    "ordered keys"
                },
                if mixed { "mixed ttl" } else { "one ttl" },
                grown.index
            ),
            format!("{:.0}", grown.ours),
            grown.of_bare.to_string(),
            format!("{:.2}", grown.p99),
            format!("{:.0} / {:.0}", grown.after_checkpoint, grown.warm),
            format!("{table:.0} / {key:.0} / {expiry:.2}"),
            format!("{:.0}", grown.while_sweeping),
            grown
                .swept_a_second
                .map_or_else(|| "–".to_owned(), |rate| format!("{rate:.0}")),
            format!("{:.2}", grown.idle_sweep.as_secs_f64() * 1e3),
        ]
    });
    let head = [
        "records",
        "a second",
        "of `bare`",
        "p99 ms",
        "log bytes, cold / warm",
        "MB: table / key / expiry index",
        "a second while sweeping",
        "swept a second",
        "idle sweep ms",
    ];
    section.table(&head, &rows.collect::<Vec<_>>());
    let usual = |grown: &&Grown| {
        let Filling { keys, mixed, .. } = grown.filling;
        keys == Keys::Random && !mixed && grown.index == BTREE
    };
    let usual: Vec<_> = grown.iter().filter(usual).collect();
    let (Some(empty), Some(largest)) = (usual.first(), usual.last()) else {
        return Err("no table was measured".into());
    };
    let kept = largest.of_bare.median / empty.of_bare.median;
    section.target("grown_of_empty", kept, Goal::AtLeast(0.85));
    if let Some(folder) = plots {
        let points = usual
            .iter()
            .map(|grown| (grown.filling.rows as f64 / 1e6, grown.of_bare.median));
        let line = Line {
            name: "ours".to_owned(),
            points: points.collect(),
        };
        let title = "Rate beside `bare` by the size of the record table";
        plot::lines(
            &folder.join("growth.svg"),
            title,
            ("million records", "of bare"),
            &[line],
        )?;
        section.plot(
            folder,
            "Rate beside the unprotected handler by the size of the record table",
            "growth.svg",
        );
    }
    Ok(section)
}
