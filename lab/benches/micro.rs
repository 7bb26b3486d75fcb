//! Times the functions that every guarded request passes through.

#![allow(missing_docs, reason = "a benchmark")]

mod inputs;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use self::inputs::{Body, KEYS, SIZES, answer, key};

fn keys(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("key");
    for (name, header) in KEYS {
        group.bench_function(name, |bencher| bencher.iter(|| key(black_box(header))));
    }
    group.finish();
}

fn fingerprints(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fingerprint");
    for (name, size) in SIZES {
        let bodies = [
            ("raw", Body::raw(size)),
            ("json", Body::json(size)),
            ("multipart", Body::multipart(size)),
        ];
        for (kind, body) in bodies {
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::new(kind, name), |bencher| {
                bencher.iter(|| black_box(&body).fingerprint());
            });
        }
    }
    group.finish();
}

fn snapshots(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("snapshot");
    for (name, size) in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        let answer = answer(size);
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(&answer).as_ref()?.stored_and_read());
        });
    }
    group.finish();
}

criterion_group!(benches, keys, fingerprints, snapshots);
criterion_main!(benches);
