//! Checks that what the README shows of the examples is what they are.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail like tests"
)]

use std::{fs, path::Path};

#[test]
fn diff_in_the_readme_leads_from_the_service_before_to_the_one_after() {
    let readme = read("README.md");
    let (_, diff) = readme.split_once("```diff\n@@\n").unwrap();
    let (diff, _) = diff.split_once("```").unwrap();
    let mut service = read("examples/into_sqlx/before.rs");
    for hunk in diff.split("@@\n") {
        let (old, new) = (side(hunk, '-'), side(hunk, '+'));
        let places = service.matches(&old).count();
        assert_eq!(places, 1, "{places} places in before.rs for:\n{hunk}");
        service = service.replace(&old, &new);
    }
    assert_eq!(service, read("examples/into_sqlx/after.rs"));
}

/// The lines of a hunk that stand on one side of the difference, and those on both.
fn side(hunk: &str, own: char) -> String {
    let lines = hunk.lines().filter_map(|line| {
        let line = line.strip_prefix(own).or_else(|| line.strip_prefix(' '))?;
        Some(format!("{line}\n"))
    });
    lines.collect()
}

fn read(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(file)).unwrap()
}
