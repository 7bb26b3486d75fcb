//! Checks the protocol within bounds of choice; `--help` names them.

use std::{error::Error, process::ExitCode};

use idem_model::{Level, Protocol, Request, Without, settle};
use stateright::{Checker, Model, report::WriteReporter};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => { eprintln!("model: {error}"); ExitCode::FAILURE }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    use {Level::*, Request::*};
    let n: usize = std::env::args().nth(1).unwrap().parse()?;
    let e: usize = std::env::args().nth(2).unwrap().parse()?;
    let l = std::env::args().nth(3).unwrap();
    let w = std::env::args().nth(4).unwrap();
    let lv = |i: usize| if l.as_bytes()[i] == b'r' { Repeatable } else { Committed };
    let rq = |i: usize| if l.as_bytes()[n + i] == b'b' { B } else { A };
    let clients: Vec<_> = (0..n).map(|i| (rq(i), lv(i))).collect();
    let mut p = Protocol::new(&clients, e);
    p.without = Without::ALL.iter().find(|x| x.0 == w).map(|x| x.1);
    if l.ends_with('u') { p.sweeper = false; }
    let t = std::time::Instant::now();
    let c = p.clone().checker().threads(2).spawn_bfs().join();
    println!("states {} unique {} depth {} done {} {:?}", c.state_count(), c.unique_state_count(), c.max_depth(), c.is_done(), t.elapsed());
    for (name, path) in c.discoveries() {
        let cond = c.model().property(name).condition;
        println!("BROKEN {name}");
        for (s, a) in path.into_vec() {
            if !cond(c.model(), &s) { break; }
            print!("{a:?} ");
        }
        println!();
    }
    let t = std::time::Instant::now();
    println!("{:?} {:?}", settle(&p), t.elapsed());
    Ok(())
}
