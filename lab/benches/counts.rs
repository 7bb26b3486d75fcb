//! Counts the instructions of the functions that every guarded request passes through: the same on
//! every run, unlike times. Needs valgrind, and gungraun-runner in the version of `Cargo.lock`.

#![allow(missing_docs, reason = "a benchmark")]

mod inputs;

use std::hint::black_box;

use gungraun::prelude::*;
use idem_runtime::{__bench::Answer, Key};

use self::inputs::{Body, KEYS, SIZES, answer, key};

#[library_benchmark]
#[bench::bare(KEYS[0].1)]
#[bench::quoted(KEYS[1].1)]
fn keys(header: &[u8]) -> Option<Key> {
    key(black_box(header))
}

#[library_benchmark]
#[bench::raw_1_kb(Body::raw(SIZES[0].1))]
#[bench::raw_64_kb(Body::raw(SIZES[1].1))]
#[bench::raw_1_mb(Body::raw(SIZES[2].1))]
#[bench::json_1_kb(Body::json(SIZES[0].1))]
#[bench::json_64_kb(Body::json(SIZES[1].1))]
#[bench::json_1_mb(Body::json(SIZES[2].1))]
#[bench::multipart_1_kb(Body::multipart(SIZES[0].1))]
#[bench::multipart_64_kb(Body::multipart(SIZES[1].1))]
#[bench::multipart_1_mb(Body::multipart(SIZES[2].1))]
fn fingerprints(body: Body) -> (Option<u8>, Body) {
    (black_box(&body).fingerprint(), body)
}

#[library_benchmark]
#[bench::with_1_kb(answer(SIZES[0].1))]
#[bench::with_64_kb(answer(SIZES[1].1))]
#[bench::with_1_mb(answer(SIZES[2].1))]
fn snapshots(answer: Option<Answer>) -> (Option<Answer>, Option<Answer>) {
    let read = black_box(&answer)
        .as_ref()
        .and_then(Answer::stored_and_read);
    (read, answer)
}

library_benchmark_group!(name = all, benchmarks = [keys, fingerprints, snapshots]);
main!(library_benchmark_groups = all);
