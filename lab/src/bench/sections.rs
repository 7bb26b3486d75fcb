//! What is measured beside what, one section after the other.

use std::{path::Path, time::Duration};

use idem_tests::relay::Relay;

use super::{
    compile,
    contenders::Contender::{
        self, Bare, Cached, Floor, NoDb, Ours, Recipe, SqliteBare, SqliteOurs, SqlxBare, SqlxOurs,
    },
    load::{self, Case, Shape},
    own,
    plot::{self, Bar, Line},
    report::{Goal, Section},
    spread::Spread,
    turns::{Rig, Series, Shown, progress},
};
use crate::Fallible;

fn rate(shown: &Shown) -> f64 {
    shown.per_second
}

fn p50(shown: &Shown) -> f64 {
    shown.p50
}

fn find(series: &[Series], contender: Contender, connections: usize) -> Fallible<&Series> {
    let found = series.iter().find(|series| {
        series.case.contender == contender && series.case.connections == connections
    });
    found.ok_or_else(|| format!("{} was not measured", contender.name()).into())
}

/// The table of a series of closed loops; each rate beside that of a contender on the same driver.
fn rates(
    section: &mut Section,
    series: &[Series],
    beside: impl Fn(&Series) -> Fallible<Option<Spread>>,
) -> Fallible<()> {
    let mut rows = Vec::new();
    for one in series {
        let middle = |by: fn(&Shown) -> f64| one.spread(by).median;
        rows.push(vec![
            format!("{} ({})", one.case.contender.name(), one.case.shape.name()),
            one.case.connections.to_string(),
            format!("{:.0}", middle(rate)),
            beside(one)?.map_or_else(String::new, |ratio| ratio.to_string()),
            format!("{:.2}", middle(p50)),
            format!("{:.2}", middle(|shown| shown.p99)),
            format!("{:.0}", middle(|shown| shown.service)),
            format!("{:.0}", middle(|shown| shown.database)),
        ]);
    }
    let head = [
        "contender",
        "connections",
        "a second",
        "ratio",
        "p50 ms",
        "p99 ms",
        "CPU of the service, µs",
        "of the database, µs",
    ];
    section.table(&head, &rows);
    Ok(())
}

/// First requests, with nothing between service and database.
pub(super) fn fresh(rig: &Rig, connections: &[usize], plots: Option<&Path>) -> Fallible<Section> {
    let mut section = Section::new("First requests");
    let contenders = [
        Bare, Floor, Recipe, Ours, SqlxBare, SqlxOurs, SqliteBare, SqliteOurs,
    ];
    let mut series = Vec::new();
    for connections in connections {
        let cases = contenders
            .into_iter()
            // With more requests at once than that, who writes by hand to SQLite waits for the one writer for
            // longer than its driver lets it.
            .filter(|contender| *connections <= 16 || !matches!(contender, SqliteBare | SqliteOurs))
            .map(|contender| Case {
                connections: *connections,
                ..Case::usual(contender, Shape::Fresh)
            });
        let cases: Vec<_> = cases.collect();
        let what = format!("first requests, {connections} connections");
        series.extend(rig.closed(&what, &cases)?);
    }
    section.say(
        "Payments under new keys, each connection sending its next one when it has its answer. The ratio is to the \
         rate of `bare` on the same driver.",
    );
    rates(&mut section, &series, |one| {
        let bare = match one.case.contender {
            SqlxOurs => SqlxBare,
            SqliteOurs => SqliteBare,
            Floor | Recipe | Ours => Bare,
            _ => return Ok(None),
        };
        let bare = find(&series, bare, one.case.connections)?;
        Ok(Some(one.beside(bare, rate)))
    })?;

    let of = |contender| find(&series, contender, 16);
    let (bare, floor, recipe, ours) = (of(Bare)?, of(Floor)?, of(Recipe)?, of(Ours)?);
    let (to_floor, to_recipe) = (ours.beside(floor, rate), ours.beside(recipe, rate));
    section.say(format_args!(
        "Over 16 connections `ours` has {to_floor} of the rate of `floor`, and {to_recipe} of that of `recipe`."
    ));
    section.target("fresh_ours_of_floor", to_floor.median, Goal::AtLeast(0.95));
    section.target(
        "fresh_ours_of_recipe",
        to_recipe.median,
        Goal::AtLeast(1.10),
    );
    if let Some(folder) = plots {
        let bar = |series: &Series| {
            let ratio = series.beside(bare, rate);
            Bar {
                name: series.case.contender.name().to_owned(),
                parts: vec![ratio.median],
                range: Some(ratio),
            }
        };
        let bars = [bar(bare), bar(floor), bar(recipe), bar(ours)];
        let title = "First requests over 16 connections, rate beside `bare`";
        plot::bars(
            &folder.join("fresh.svg"),
            title,
            "of bare",
            &["rate"],
            &bars,
        )?;
        section.plot(
            folder,
            "Rates of first requests beside the unprotected handler",
            "fresh.svg",
        );
        let bar = |series: &Series| Bar {
            name: series.case.contender.name().to_owned(),
            parts: vec![
                series.spread(|shown| shown.service).median,
                series.spread(|shown| shown.database).median,
            ],
            range: None,
        };
        let sixteen = series.iter().filter(|series| series.case.connections == 16);
        let bars: Vec<_> = sixteen.map(bar).collect();
        let title = "CPU time of a first request";
        plot::bars(
            &folder.join("cpu.svg"),
            title,
            "µs",
            &["service", "database"],
            &bars,
        )?;
        section.plot(folder, "CPU time of first requests", "cpu.svg");
    }
    Ok(section)
}

/// What is not a first request.
pub(super) fn kinds(rig: &Rig) -> Fallible<Section> {
    let mut section = Section::new("Repeats, conflicts, refusals");
    section.say(
        "The ratio is to the rate of `recipe`. `recipe` remembers no refusal; `ours` stores it, in a transaction of \
         its own after the rollback. The mix is 80 % first requests, 15 % repeats, 3 % conflicts, 2 % refusals. A foreign \
         repeat is the first that a process sees of a key, whose record another process has stored: it takes a claim; \
         of the others the process knows that they have a record, and looks before it claims.",
    );
    let kinds = [
        (
            Shape::Repeat,
            &[NoDb, Recipe, Ours, Cached, SqlxOurs, SqliteOurs][..],
        ),
        (Shape::Conflict, &[Recipe, Ours]),
        (Shape::Refused, &[Bare, Recipe, Ours]),
        (Shape::Mixed, &[Recipe, Ours]),
    ];
    for (shape, contenders) in kinds {
        let cases = contenders
            .iter()
            .map(|contender| Case::usual(*contender, shape));
        let mut cases: Vec<_> = cases.collect();
        if shape == Shape::Repeat {
            cases.push(Case::usual(Ours, Shape::Foreign));
        }
        let series = rig.closed(shape.name(), &cases)?;
        if shape == Shape::Repeat {
            let of = |contender| find(&series, contender, 16);
            let memory = of(Cached)?.beside(of(NoDb)?, rate);
            let database = of(Ours)?.beside(of(Recipe)?, rate);
            let foreign = series.last().ok_or("foreign repeats were not measured")?;
            let foreign = foreign.beside(of(Recipe)?, rate);
            section.say(format_args!(
                "A repeat from memory has {memory} of the rate of `nodb`, one from the database {database} of that of \
                 `recipe`, a foreign one {foreign}."
            ));
            section.target("repeat_cached_of_nodb", memory.median, Goal::AtLeast(0.60));
            section.target("repeat_ours_of_recipe", database.median, Goal::AtLeast(1.3));
            section.target(
                "foreign_repeat_ours_of_recipe",
                foreign.median,
                Goal::AtLeast(1.3),
            );
        }
        let recipe = find(&series, Recipe, 16)?;
        rates(&mut section, &series, |one| {
            let other = one.case.contender != Recipe;
            Ok(other.then(|| one.beside(recipe, rate)))
        })?;
    }
    Ok(section)
}

/// First requests where each round trip takes its time.
pub(super) fn delays(
    near: &Rig,
    far: &Rig,
    relay: &Relay,
    plots: Option<&Path>,
) -> Fallible<Section> {
    let mut section = Section::new("Where a round trip takes its time");
    section.say(
        "First requests over 16 connections, through a relay that holds each answer of the database back, for about \
         so long; nothing stands in between at 0 ms. Times are p50; the ratio is to that of `bare` on the same driver.",
    );
    let contenders = [Bare, Floor, Recipe, Ours, SqlxBare, SqlxOurs];
    let mut rows: Vec<_> = contenders
        .map(|contender| vec![contender.name().to_owned()])
        .into();
    let mut lines: Vec<_> = [Floor, Recipe, Ours]
        .map(|contender| Line {
            name: contender.name().to_owned(),
            points: Vec::new(),
        })
        .into();
    for latency in [0, 1, 10] {
        relay.set_latency(Duration::from_millis(latency));
        let rig = if latency == 0 { near } else { far };
        let cases = contenders.map(|contender| Case::usual(contender, Shape::Fresh));
        let series = rig.closed(&format!("{latency} ms a round trip"), &cases)?;
        let of = |contender| find(&series, contender, 16);
        for (series, row) in series.iter().zip(&mut rows) {
            let bare = match series.case.contender {
                SqlxBare | SqlxOurs => of(SqlxBare)?,
                _ => of(Bare)?,
            };
            row.push(format!("{:.2} ms", series.spread(p50).median));
            row.push(series.beside(bare, p50).to_string());
        }
        for (line, contender) in lines.iter_mut().zip([Floor, Recipe, Ours]) {
            let ratio = of(contender)?.beside(of(Bare)?, p50);
            line.points.push((latency as f64, ratio.median));
        }
        if latency == 10 {
            let bare = of(Ours)?.beside(of(Bare)?, p50).median;
            section.target("delayed_p50_ours_of_bare", bare, Goal::AtMost(1.02));
            let recipe = of(Recipe)?.beside(of(Ours)?, p50).median;
            section.target("delayed_p50_recipe_of_ours", recipe, Goal::AtLeast(1.5));
        }
    }
    relay.set_latency(Duration::ZERO);
    let head = [
        "contender",
        "0 ms",
        "ratio",
        "1 ms",
        "ratio",
        "10 ms",
        "ratio",
    ];
    section.table(&head, &rows);
    if let Some(folder) = plots {
        let title = "p50 of a first request beside `bare`";
        let units = ("ms a round trip", "of bare");
        plot::lines(&folder.join("delays.svg"), title, units, &lines)?;
        section.plot(
            folder,
            "Latency beside the unprotected handler, by the time a round trip takes",
            "delays.svg",
        );
    }
    Ok(section)
}

/// How often a request waits for the database.
pub(super) fn round_trips(rig: &Rig, relay: &Relay) -> Fallible<Section> {
    /// So long that the rest of a request does not count.
    const LONG: Duration = Duration::from_millis(60);
    const TIMES: usize = 5;
    let mut section = Section::new("Round trips");
    section.say(format_args!(
        "What a client waits for, in round trips between service and database: its time with {} ms a round trip, \
         over one connection, statements prepared; and beside it what the service sends in all, the ROLLBACK behind \
         an answer too.",
        LONG.as_millis()
    ));
    let cases = [
        (Bare, Shape::Fresh),
        (Floor, Shape::Fresh),
        (Recipe, Shape::Fresh),
        (Ours, Shape::Fresh),
        (SqlxBare, Shape::Fresh),
        (SqlxOurs, Shape::Fresh),
        (Recipe, Shape::Repeat),
        (Ours, Shape::Repeat),
        (Cached, Shape::Repeat),
        (SqlxOurs, Shape::Repeat),
        (Ours, Shape::Refused),
    ];
    let mut rows = Vec::new();
    let mut waited = Vec::new();
    for (done, (contender, shape)) in cases.into_iter().enumerate() {
        progress("round trips", done + 1, cases.len());
        let case = Case {
            connections: 1,
            ..Case::usual(contender, shape)
        };
        relay.set_latency(Duration::ZERO);
        // Every connection of the pool prepares its statements.
        let all = Case::usual(contender, shape);
        rig.warm(all)?;
        rig.warm(case)?;
        relay.set_latency(LONG);
        relay.reset_counters();
        let once = load::some(rig.service.address, case, TIMES);
        let times = rig.runtime.block_on(once)?;
        // What is sent behind the last answer.
        std::thread::sleep(LONG * 2);
        let sent = relay.flights() as f64 / TIMES as f64;
        let trips = (times.at(0.5) / (LONG.as_secs_f64() * 1e3)).floor();
        waited.push(trips);
        rows.push(vec![
            format!("{} ({})", contender.name(), shape.name()),
            format!("{trips:.0}"),
            format!("{sent:.0}"),
        ]);
    }
    relay.set_latency(Duration::ZERO);
    section.table(&["request", "waits for", "sends"], &rows);
    let of = |contender, shape| {
        let at = cases.iter().position(|case| *case == (contender, shape));
        at.and_then(|at| waited.get(at).copied())
            .unwrap_or(f64::NAN)
    };
    let bare = Goal::AtMost(of(Bare, Shape::Fresh));
    section.target("round_trips_first", of(Ours, Shape::Fresh), bare);
    section.target(
        "round_trips_repeat",
        of(Ours, Shape::Repeat),
        Goal::AtMost(1.0),
    );
    section.target(
        "round_trips_repeat_cached",
        of(Cached, Shape::Repeat),
        Goal::AtMost(0.0),
    );
    Ok(section)
}

/// Requests that are due at times of their own.
pub(super) fn open_loop(rig: &Rig, plots: Option<&Path>) -> Fallible<Section> {
    let mut section = Section::new("At a given rate");
    let contenders = [Bare, Floor, Recipe, Ours];
    let cases = contenders.map(|contender| Case {
        connections: 64,
        ..Case::usual(contender, Shape::Fresh)
    });
    let most = rig.closed("the most that goes", &cases)?;
    let most = Spread::of(most.iter().map(|series| series.spread(rate).median)).min;
    section.say(
        "First requests that are due at even times, whatever the answers do; latency counts from when a request is \
         due. The rates are shares of what the slowest contender reaches in a closed loop.",
    );
    let mut rows = Vec::new();
    let mut lines = contenders.map(|contender| Line {
        name: contender.name().to_owned(),
        points: vec![],
    });
    for share in [0.25, 0.5, 0.75] {
        let per_second = most * share;
        let what = format!("{per_second:.0} requests a second");
        let series = rig.open(&what, &cases, per_second)?;
        for (series, line) in series.iter().zip(&mut lines) {
            let middle = |by: fn(&Shown) -> f64| format!("{:.2}", series.spread(by).median);
            rows.push(vec![
                series.case.contender.name().to_owned(),
                format!("{per_second:.0}"),
                middle(p50),
                middle(|shown| shown.p99),
                middle(|shown| shown.p999),
            ]);
            line.points
                .push((per_second, series.spread(|shown| shown.p99).median));
        }
    }
    let head = [
        "contender",
        "requests a second",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
    ];
    section.table(&head, &rows);
    if let Some(folder) = plots {
        let title = "p99 of first requests that are due at even times";
        let units = ("requests a second", "ms");
        plot::lines(&folder.join("open.svg"), title, units, &lines)?;
        section.plot(folder, "p99 by rate", "open.svg");
    }
    Ok(section)
}

/// Larger answers.
pub(super) fn sizes(rig: &Rig) -> Fallible<Section> {
    let mut section = Section::new("Larger answers");
    section.say(
        "Rates over 16 connections by the size of the answer. First requests: the ratio is to `bare`. Repeats: to \
         `nodb`, which makes its answer anew.",
    );
    let mut rows = Vec::new();
    for (name, note) in [
        ("1 KB", 1 << 10),
        ("16 KB", 16 << 10),
        ("256 KB", 256 << 10),
    ] {
        let groups = [
            (Shape::Fresh, [Bare, Floor, Ours], Bare),
            (Shape::Repeat, [NoDb, Ours, Cached], NoDb),
        ];
        for (shape, contenders, beside) in groups {
            let cases = contenders.map(|contender| Case {
                note,
                ..Case::usual(contender, shape)
            });
            let series = rig.closed(&format!("{name}, {}", shape.name()), &cases)?;
            let beside = find(&series, beside, 16)?;
            for one in &series {
                rows.push(vec![
                    format!("{} ({})", one.case.contender.name(), shape.name()),
                    name.to_owned(),
                    format!("{:.0}", one.spread(rate).median),
                    one.beside(beside, rate).to_string(),
                    format!("{:.2}", one.spread(p50).median),
                ]);
            }
        }
    }
    section.table(
        &["contender", "answer", "a second", "ratio", "p50 ms"],
        &rows,
    );
    Ok(section)
}

/// What a first request writes.
pub(super) fn writes(rig: &Rig) -> Fallible<Section> {
    let mut section = Section::new("What is written");
    section.say(
        "Bytes of write-ahead log and dead row versions in the record table that a first request leaves, without \
         full-page writes: what those add is below, under growth.",
    );
    let full_pages = |on: &str| -> Fallible<()> {
        let set = format!("ALTER SYSTEM SET full_page_writes = {on}");
        rig.cluster.run_sql("postgres", &set)?;
        rig.cluster.run_sql("postgres", "SELECT pg_reload_conf()")?;
        Ok(())
    };
    full_pages("off")?;
    rig.cluster
        .run_sql("bench", "CREATE EXTENSION IF NOT EXISTS pgstattuple")?;
    let contenders = [Bare, Floor, Recipe, Ours, SqlxOurs];
    let mut bytes: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    let mut dead: Vec<Vec<f64>> = bytes.clone();
    for contender in contenders {
        rig.warm(Case::usual(contender, Shape::Fresh))?;
    }
    for round in 0..rig.rounds {
        for (index, contender) in contenders.into_iter().enumerate() {
            progress(
                "writes",
                round * contenders.len() + index + 1,
                rig.rounds * contenders.len(),
            );
            let table = match contender {
                Ours | SqlxOurs => "idem.records",
                _ => "by_hand",
            };
            let before = written(rig, "bench", table)?;
            let case = Case::usual(contender, Shape::Fresh);
            let load = load::closed(rig.service.address, case, rig.length);
            let requests = rig.runtime.block_on(load)?.times.len() as f64;
            let after = written(rig, "bench", table)?;
            if let (Some(bytes), Some(dead)) = (bytes.get_mut(index), dead.get_mut(index)) {
                bytes.push((after.0 - before.0) / requests);
                dead.push((after.1 - before.1) / requests);
            }
        }
    }
    full_pages("on")?;
    let spread =
        |of: &[Vec<f64>], index: usize| Spread::of(of.get(index).into_iter().flatten().copied());
    let rows = contenders.iter().enumerate().map(|(index, contender)| {
        vec![
            contender.name().to_owned(),
            format!("{:.0}", spread(&bytes, index).median),
            format!("{:.2}", spread(&dead, index).median),
        ]
    });
    section.table(
        &["contender", "log, bytes", "dead row versions"],
        &rows.collect::<Vec<_>>(),
    );
    let (floor, ours) = (spread(&bytes, 1).median, spread(&bytes, 3).median);
    section.target("wal_ours_of_floor", ours / floor, Goal::AtMost(1.05));
    section.target("dead_tuples", spread(&dead, 3).max, Goal::AtMost(0.0));
    Ok(section)
}

/// How much log was written so far, and how many dead row versions a table holds.
fn written(rig: &Rig, database: &str, table: &str) -> Fallible<(f64, f64)> {
    let asked = format!(
        "SELECT (pg_current_wal_insert_lsn() - '0/0')::text || ' ' || dead_tuple_count FROM pgstattuple('{table}')"
    );
    let told = rig.cluster.run_sql(database, &asked)?;
    let (bytes, dead) = told.split_once(' ').ok_or("no figures")?;
    Ok((bytes.parse()?, dead.parse()?))
}

/// What the framework itself takes of a request.
pub(super) fn own() -> Fallible<Section> {
    let mut section = Section::new("The framework's own CPU time");
    progress("the framework's own CPU time", 1, 1);
    let shown = own::measure()?;
    section.say(
        "The same handler bare and guarded, over a backend that answers at once, in one thread and without a network: \
         a body of 1 KB JSON, a scope from an extractor. CPU time a request, in µs.",
    );
    let row = |name: &str, spread: Spread| vec![name.to_owned(), spread.to_string()];
    section.table(
        &["", "µs"],
        &[
            row("bare", shown.bare),
            row("guarded", shown.guarded),
            row("the framework's own", shown.difference),
        ],
    );
    section.target("own_cpu_us", shown.difference.median, Goal::AtMost(15.0));
    Ok(section)
}

/// What the attribute adds to compilation.
pub(super) fn compile(rounds: usize) -> Fallible<Section> {
    let mut section = Section::new("Compilation");
    progress("compilation", 1, 1);
    let shown = compile::measure(rounds)?;
    section.say(format_args!(
        "CPU time of the compiler for 100 handlers, dependencies built before, nothing incremental: the handler with a \
         hand-written transaction, and guarded. `cargo check` takes {} s by hand and {} s guarded, {} of it; a release \
         build {:.2} of that by hand.",
        shown.by_hand, shown.guarded, shown.check, shown.release
    ));
    section.target(
        "check_of_100_handlers",
        shown.check.median,
        Goal::AtMost(1.25),
    );
    Ok(section)
}
