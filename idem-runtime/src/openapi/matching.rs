//! Tells which guarded handler an operation of a document is.

use utoipa::openapi::path::Operation;

use crate::model::Policy;

/// Holds what a document says about who handles an operation.
#[derive(Clone, Debug)]
pub(super) struct Documented {
    path: String,
    id: String,
    tags: Vec<String>,
}

/// Says which handler an operation has.
#[derive(Debug)]
pub(super) enum Match {
    /// The one with this policy.
    Handler(&'static Policy),
    /// None that is guarded.
    None,
    /// Perhaps one of these, perhaps another.
    Uncertain(String),
}

impl Documented {
    pub(super) fn new(path: &str, operation: &Operation) -> Self {
        let id = operation.operation_id.as_deref().unwrap_or_default();
        Self {
            path: path.to_owned(),
            // utoipa takes a function's name as it is written.
            id: id.strip_prefix("r#").unwrap_or(id).to_owned(),
            tags: operation.tags.clone().unwrap_or_default(),
        }
    }
}

/// Finds the handler of each operation.
pub(super) fn all(documented: &[Documented], policies: &[&'static Policy]) -> Vec<Match> {
    let one = |operation| find(operation, documented, policies);
    documented.iter().map(one).collect()
}

fn find(of: &Documented, documented: &[Documented], policies: &[&'static Policy]) -> Match {
    let named = |policy: &&&'static Policy| policy.operation == Some(&*of.id);
    let named: Vec<&Policy> = policies.iter().filter(named).copied().collect();
    if let [policy] = *named {
        return Match::Handler(policy);
    }
    // Several handlers may share an operation: then the function's name is looked at as well.
    let of_name = |policy: &&&'static Policy| function(policy).1 == of.id;
    let candidates: Vec<&Policy> = policies.iter().filter(of_name).copied().collect();
    let supported = |policy: &&&'static Policy| of.tags.iter().any(|tag| is_module(tag, policy));
    let supported: Vec<&Policy> = candidates.iter().filter(supported).copied().collect();
    match (&*candidates, &*supported) {
        ([], _) if named.is_empty() => Match::None,
        (_, [policy]) => Match::Handler(policy),
        ([policy], []) if is_only(of, documented) && !of.tags.iter().any(|tag| is_path(tag)) => {
            Match::Handler(policy)
        }
        _ => {
            let all = named.iter().chain(&candidates).map(|policy| policy.handler);
            Match::Uncertain(all.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Splits a handler's name into its module and its function.
fn function(policy: &Policy) -> (&'static str, &'static str) {
    policy.handler.rsplit_once("::").unwrap_or_default()
}

/// Whether a tag is the handler's module: utoipa tags an operation with the path under which the
/// document names the handler.
fn is_module(tag: &str, policy: &Policy) -> bool {
    let (module, _) = function(policy);
    let tag = relative(tag);
    let rest = module.strip_suffix(tag);
    !tag.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.ends_with("::"))
}

/// Whether a tag may be a module's path, and then of a module that is not the handler's.
fn is_path(tag: &str) -> bool {
    let is_name = |name: &str| {
        let mut letters = name.chars();
        letters
            .next()
            .is_some_and(|first| first.is_ascii_lowercase() || first == '_')
            && letters.all(|letter| matches!(letter, 'a'..='z' | '0'..='9' | '_'))
    };
    let tag = relative(tag);
    !tag.is_empty() && tag.split("::").all(is_name)
}

/// Takes off a path's beginning what says only where it begins.
fn relative(path: &str) -> &str {
    match path.split_once("::").unwrap_or((path, "")) {
        ("crate" | "self" | "super", rest) => relative(rest),
        _ => path,
    }
}

/// Whether no operation on another path has the same id.
fn is_only(of: &Documented, documented: &[Documented]) -> bool {
    let mut same = documented.iter().filter(|other| other.id == of.id);
    same.all(|other| other.path == of.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    static PAY: Policy = Policy::new("shop::payments::create", "f:1");
    static REFUND: Policy = Policy::new("shop::refunds::create", "f:2").operation("refunds.create");
    static SHIP: Policy = Policy::new("shop::ship", "f:3");

    fn operation(path: &str, id: &str, tags: &[&str]) -> Documented {
        Documented {
            path: path.to_owned(),
            id: id.to_owned(),
            tags: tags.iter().map(ToString::to_string).collect(),
        }
    }

    /// What each operation is found to be: a handler, nothing, or `?`.
    fn found(documented: &[Documented], policies: &[&'static Policy]) -> Vec<&'static str> {
        let matches = all(documented, policies).into_iter();
        matches
            .map(|found| match found {
                Match::Handler(policy) => policy.handler,
                Match::None => "",
                Match::Uncertain(_) => "?",
            })
            .collect()
    }

    #[test]
    fn a_name_that_only_one_has_is_enough() {
        for tags in [&[][..], &["Shipping"], &["super"], &["shop"], &["crate"]] {
            let documented = [
                operation("/ship", "ship", tags),
                operation("/x", "list", tags),
            ];
            assert_eq!(
                found(&documented, &[&PAY, &SHIP]),
                [SHIP.handler, ""],
                "{tags:?}"
            );
        }
    }

    #[test]
    fn the_tag_tells_handlers_of_one_name_apart() {
        let documented = [
            operation("/payments", "create", &["crate::payments"]),
            operation("/refunds", "create", &["Money", "refunds"]),
            operation("/reports", "create", &["reports"]),
            operation("/other", "create", &["unpayments"]),
        ];
        let expected = [PAY.handler, REFUND.handler, "?", "?"];
        assert_eq!(found(&documented, &[&PAY, &REFUND, &SHIP]), expected);
    }

    #[test]
    fn handlers_of_one_name_and_no_tag_are_left_alone() {
        let documented = [operation("/payments", "create", &[])];
        assert_eq!(found(&documented, &[&PAY, &REFUND]), ["?"]);
    }

    #[test]
    fn a_tag_that_may_be_another_module_leaves_the_operation_alone() {
        // An unguarded `reports::create` beside a guarded `payments::create`.
        let documented = [operation("/reports", "create", &["reports"])];
        assert_eq!(found(&documented, &[&PAY]), ["?"]);
        let documented = [operation("/reports", "create", &["api::reports"])];
        assert_eq!(found(&documented, &[&PAY]), ["?"]);
    }

    #[test]
    fn an_id_that_two_paths_have_is_left_alone_and_two_methods_of_one_are_not() {
        let twice = [operation("/a", "ship", &[]), operation("/b", "ship", &[])];
        assert_eq!(found(&twice, &[&SHIP]), ["?", "?"]);
        let methods = [operation("/a", "ship", &[]), operation("/a", "ship", &[])];
        assert_eq!(found(&methods, &[&SHIP]), [SHIP.handler, SHIP.handler]);
    }

    #[test]
    fn the_operation_of_the_attribute_decides_alone() {
        let documented = [operation("/r", "refunds.create", &["reports"])];
        assert_eq!(found(&documented, &[&PAY, &REFUND]), [REFUND.handler]);
    }

    #[test]
    fn handlers_that_share_an_operation_are_left_alone() {
        static OLD: Policy = Policy::new("shop::old::create", "f:4").operation("refunds.create");
        let documented = [operation("/r", "refunds.create", &[])];
        assert_eq!(found(&documented, &[&OLD, &REFUND]), ["?"]);
    }
}
