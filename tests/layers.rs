//! Checks that imports in the runtime point downwards only, and that outside crates are named only where they belong.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail like tests"
)]

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Ident, TokenStream, TokenTree};

/// The layers from the bottom up: a module may name those of its own layer and of the ones below.
const LAYERS: [&[&str]; 5] = [
    &["error", "meter", "model", "seeded"],
    &["backend"],
    &["cache", "gate", "protocol"],
    &["http", "openapi", "settings", "sweep"],
    // The crate's root, its inline modules, and what generated code names.
    &[
        "lib",
        "__private",
        "bench",
        "postgres",
        "private",
        "sqlite",
        "status",
    ],
];

/// Outside crates that only some modules may name.
const CONFINED: [(&str, &[&str]); 7] = [
    ("actix_web", &["http", "settings", "private", "__private"]),
    ("metrics", &["meter"]),
    ("deadpool_postgres", &["backend::postgres::deadpool"]),
    ("tokio_postgres", &["backend::postgres::deadpool"]),
    (
        "sqlx",
        &[
            "backend::held",
            "backend::postgres::sqlx",
            "backend::sqlite",
            // The backend's own module has the driver's name.
            "backend::postgres",
            "lib",
            "postgres",
        ],
    ),
    (
        "tokio",
        &[
            "backend", "cache", "error", "gate", "http", "lib", "private", "protocol", "settings",
            "sweep",
        ],
    ),
    ("utoipa", &["openapi"]),
];

#[test]
fn imports_of_the_runtime_point_downwards() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../idem-runtime/src");
    let files = rust_files(&root);
    assert!(!files.is_empty(), "no sources in {}", root.display());
    let faults: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let module = module_of(file.strip_prefix(&root).unwrap());
            let source = fs::read_to_string(file).unwrap();
            let name = Path::new("idem-runtime/src").join(file.strip_prefix(&root).unwrap());
            let prefix = name.display().to_string();
            faults(&module, &source)
                .into_iter()
                .map(move |(line, fault)| format!("{prefix}:{line}: {fault}"))
        })
        .collect();
    assert!(
        faults.is_empty(),
        "imports against the layers:\n{}",
        faults.join("\n")
    );
}

#[test]
fn upward_paths_are_found_however_they_are_written() {
    for (file, source) in [
        ("model/key.rs", "use crate::backend::Backend;"),
        (
            "model/key.rs",
            "use crate::{\n    error::A,\n    gate::{B, C},\n};",
        ),
        ("model/key.rs", "use super::super::protocol::run;"),
        ("model/key.rs", "use super::{Key, super::{backend}};"),
        (
            "model/key.rs",
            "#[cfg(test)] mod tests { use super::super::super::http; }",
        ),
        (
            "backend/mod.rs",
            "fn f() -> crate::gate::Gate { crate::http::x() }",
        ),
        ("backend/mod.rs", "use crate::*;"),
        ("backend/mod.rs", "use super::{self as root, *};"),
        ("error.rs", "pub use crate::Idempotency;"),
        ("error.rs", "use super::settings;"),
        (
            "protocol.rs",
            "macro_rules! m { () => { $crate::http::f() } }",
        ),
        ("sweep.rs", "use crate::private as p;"),
        ("model/key.rs", "use actix_web::web;"),
        ("model/key.rs", "use tokio::sync::Mutex;"),
        ("gate.rs", "use ::tokio_postgres::Row;"),
        ("backend/mod.rs", "use deadpool_postgres as pool;"),
        (
            "backend/postgres/error.rs",
            "use tokio_postgres::Error as Driver;",
        ),
        ("backend/sqlite/tx.rs", "use tokio_postgres::Row;"),
        ("protocol.rs", "use sqlx::Error;"),
        ("http/problem.rs", "use utoipa::openapi::Schema;"),
        ("sweep.rs", "use metrics::counter;"),
        ("protocol.rs", "fn f(_: actix_web::HttpRequest) {}"),
        ("novelty.rs", ""),
        ("error.rs", "use crate::novelty::X;"),
    ] {
        let found = faults(&module_of(Path::new(file)), source);
        assert!(!found.is_empty(), "no fault in {file}: {source}");
    }
}

#[test]
fn downward_paths_comments_and_texts_are_no_faults() {
    for (file, source) in [
        (
            "model/key.rs",
            "use super::Scope;\nuse crate::{error, model::Key};",
        ),
        (
            "model/key.rs",
            "//! See crate::http::run.\n/// As [`crate::settings`] says.\n// crate::gate\nconst A: &str = \"crate::http\";",
        ),
        (
            "model/key.rs",
            "#[cfg(test)] mod tests { use super::{super::Scope, *}; }",
        ),
        (
            "backend/postgres/deadpool/tx.rs",
            "use super::{Backend, super::super::model::Key};\nuse tokio_postgres::Row;",
        ),
        (
            "gate.rs",
            "use crate::protocol::Run;\nuse tokio::sync::watch;",
        ),
        (
            "http/guarded.rs",
            "use crate::{settings::Idempotency, gate::Gate};\nuse actix_web::web;",
        ),
        (
            "private.rs",
            "pub use crate::{http::run, model::Policy};\npub use actix_web::HttpRequest;",
        ),
        (
            "lib.rs",
            "mod http;\npub mod postgres { pub use crate::backend::postgres::Tx; }\npub use self::http::Problem;",
        ),
    ] {
        let found = faults(&module_of(Path::new(file)), source);
        assert!(found.is_empty(), "{found:?} in {file}: {source}");
    }
}

#[test]
fn fault_names_the_line_and_the_rule() {
    let found = faults(
        &module_of(Path::new("gate.rs")),
        "use std::fmt;\n\nuse crate::{\n    error,\n    http::Problem,\n};",
    );
    let rule = "`gate` may not name `crate::http`: imports point downwards only, to backend, cache, error, gate, meter, model, protocol, seeded";
    assert_eq!(found, [(5, rule.to_owned())]);

    let found = faults(&module_of(Path::new("sweep.rs")), "use actix_web::rt;");
    let rule = "`sweep` may not name `actix_web`: only http, settings, private, __private may";
    assert_eq!(found, [(1, rule.to_owned())]);
}

/// A module's place in the crate: `["http", "body"]`; the root is empty.
type Module = Vec<String>;

/// Returns each fault of a file with its line.
fn faults(module: &[String], source: &str) -> Vec<(usize, String)> {
    let own = top(module).to_owned();
    let Some(rank) = rank(&own) else {
        return vec![(
            1,
            format!("`{own}` has no layer yet: give it one in this test"),
        )];
    };
    let mut walk = Walk {
        own,
        rank,
        faults: Vec::new(),
    };
    let tokens = TokenStream::from_str(source);
    walk.tokens(
        tokens.unwrap_or_else(|error| panic!("{module:?}: {error}")),
        module,
    );
    walk.faults
}

struct Walk {
    /// The module at the top of the file's path, which has the layer.
    own: String,
    rank: usize,
    faults: Vec<(usize, String)>,
}

impl Walk {
    /// Looks at all paths in some code of `module`.
    fn tokens(&mut self, tokens: TokenStream, module: &[String]) {
        let mut tokens: VecDeque<TokenTree> = tokens.into_iter().collect();
        let mut opened = None;
        while let Some(token) = tokens.pop_front() {
            match token {
                TokenTree::Ident(word) if word == "mod" => {
                    opened = tokens.front().map(ToString::to_string);
                }
                TokenTree::Ident(word) => {
                    self.outside_crate(&word, module);
                    if let Some(base) = step(module, &word) {
                        self.path(&base, &word, &mut tokens);
                    }
                }
                TokenTree::Group(group) => {
                    let inner = opened.take().map(|name| child(module, &name));
                    self.tokens(group.stream(), inner.as_deref().unwrap_or(module));
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => opened = None,
                _ => {}
            }
        }
    }

    /// Follows a path that has come to `base`, through braces to its every end.
    fn path(&mut self, base: &[String], word: &Ident, tokens: &mut VecDeque<TokenTree>) {
        if !skip_colons(tokens) {
            return;
        }
        match tokens.pop_front() {
            Some(TokenTree::Ident(next)) => match step(base, &next) {
                Some(base) => self.path(&base, &next, tokens),
                None => self.names(&child(base, &next.to_string()), &next),
            },
            Some(TokenTree::Group(group)) => {
                let mut tokens: VecDeque<TokenTree> = group.stream().into_iter().collect();
                // Each member begins at `base` again; what follows its first module does not matter.
                while let Some(token) = tokens.pop_front() {
                    if let TokenTree::Ident(next) = &token {
                        match step(base, next) {
                            Some(base) => self.path(&base, next, &mut tokens),
                            None => self.names(&child(base, &next.to_string()), next),
                        }
                    } else if token.to_string() == "*" {
                        self.names(base, word);
                    }
                    while tokens
                        .pop_front()
                        .is_some_and(|token| token.to_string() != ",")
                    {}
                }
            }
            Some(TokenTree::Punct(_)) => self.names(base, word),
            _ => {}
        }
    }

    fn names(&mut self, target: &[String], at: &Ident) {
        let named = top(target);
        // What is named at the root but is no module is the root's own, and that stands above all modules.
        if rank(named).unwrap_or(LAYERS.len()) > self.rank {
            let mut allowed = LAYERS
                .iter()
                .take(self.rank + 1)
                .copied()
                .collect::<Vec<_>>()
                .concat();
            allowed.sort_unstable();
            let rule = format!("imports point downwards only, to {}", allowed.join(", "));
            self.fault(
                at,
                format!("`{}` may not name `crate::{named}`: {rule}", self.own),
            );
        }
    }

    fn outside_crate(&mut self, word: &Ident, module: &[String]) {
        let Some((name, homes)) = CONFINED.into_iter().find(|(name, _)| word == name) else {
            return;
        };
        let place = if module.is_empty() {
            "lib".to_owned()
        } else {
            module.join("::")
        };
        let at_home = |home: &&str| place == **home || place.starts_with(&format!("{home}::"));
        if !homes.iter().any(at_home) {
            let rule = format!("only {} may", homes.join(", "));
            self.fault(word, format!("`{place}` may not name `{name}`: {rule}"));
        }
    }

    fn fault(&mut self, at: &Ident, message: String) {
        self.faults.push((at.span().start().line, message));
    }
}

/// Goes where `crate`, `super` and `self` lead; nothing else leads out of a module.
fn step(module: &[String], word: &Ident) -> Option<Module> {
    match word.to_string().as_str() {
        "crate" => Some(Module::new()),
        "super" => Some(
            module
                .split_last()
                .map_or_else(Module::new, |(_, parent)| parent.to_vec()),
        ),
        "self" => Some(module.to_vec()),
        _ => None,
    }
}

fn skip_colons(tokens: &mut VecDeque<TokenTree>) -> bool {
    let colon = |token: Option<&TokenTree>| token.is_some_and(|token| token.to_string() == ":");
    let found = colon(tokens.front()) && colon(tokens.get(1));
    if found {
        tokens.drain(..2);
    }
    found
}

fn child(module: &[String], name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn top(module: &[String]) -> &str {
    module.first().map_or("lib", String::as_str)
}

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Turns `http/body.rs` and `http/body/mod.rs` into `["http", "body"]`.
fn module_of(file: &Path) -> Module {
    let module = file.with_extension("");
    let parts = module.iter().map(|part| part.to_str().unwrap().to_owned());
    let mut parts: Module = parts.collect();
    if parts
        .last()
        .is_some_and(|last| last == "mod" || last == "lib")
    {
        parts.pop();
    }
    parts
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .flat_map(|path| {
            if path.is_dir() {
                rust_files(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    files.sort();
    files
}
