//! The rules for `commit_on` and `release_on`: which refusals an endpoint can treat in another way.

use syn::{Error, Expr, ExprLit, Lit};

use crate::errors::{Errors, with_note};
use crate::parse::{Given, Options};

/// A status and the expression that wrote it.
type Status<'a> = (u16, &'a Expr);

/// Reads both lists: the statuses to commit on, and those to release on.
pub(super) fn check(options: &Options, errors: &mut Errors) -> (Vec<u16>, Vec<u16>) {
    let commit_on = list(options.commit_on.as_ref(), errors);
    let release_on = list(options.release_on.as_ref(), errors);
    no_status_is_decided_twice(&commit_on, &release_on, errors);
    (numbers(&commit_on), numbers(&release_on))
}

fn list<'a>(given: Option<&'a Given>, errors: &mut Errors) -> Vec<Status<'a>> {
    let mut listed: Vec<Status<'_>> = Vec::new();
    for value in errors.apply(given, elements).unwrap_or_default() {
        let Some(status) = errors.check(refusal(value)) else {
            continue;
        };
        match listed.iter().find(|(earlier, _)| *earlier == status) {
            Some((_, first)) => {
                let message = format!("status {status} is listed twice\nhelp: keep one of the two");
                errors.add(with_note(value, message, first, "first listed here"));
            }
            None => listed.push((status, value)),
        }
    }
    listed
}

fn elements(given: &Given) -> syn::Result<Vec<&Expr>> {
    let name = &given.name;
    match &given.value {
        Expr::Array(list) if list.elems.is_empty() => Err(Error::new_spanned(
            list,
            format!("`{name}` lists no status\nhelp: leave it out"),
        )),
        Expr::Array(list) => Ok(list.elems.iter().collect()),
        value => {
            let message =
                format!("`{name}` takes a list of statuses\nhelp: write `{name} = [402]`");
            Err(Error::new_spanned(value, message))
        }
    }
}

fn refusal(value: &Expr) -> syn::Result<u16> {
    match integer(value) {
        Some(status @ (408 | 425 | 429)) => Err(Error::new_spanned(
            value,
            format!("status {status} always frees the key\nhelp: remove it from the list"),
        )),
        Some(status @ 400..=499) => Ok(status),
        _ => Err(Error::new_spanned(
            value,
            "only a refusal, a status from 400 to 499, can be treated in another way\n\
             help: 2xx and 3xx always commit, 5xx always frees the key",
        )),
    }
}

fn integer(value: &Expr) -> Option<u16> {
    if let Expr::Lit(ExprLit {
        lit: Lit::Int(number),
        ..
    }) = value
    {
        return number.base10_parse().ok();
    }
    None
}

fn no_status_is_decided_twice(
    commit_on: &[Status<'_>],
    release_on: &[Status<'_>],
    errors: &mut Errors,
) {
    for (status, value) in release_on {
        if let Some((_, other)) = commit_on.iter().find(|(committed, _)| committed == status) {
            let message = format!(
                "status {status} is in `commit_on` and in `release_on`\nhelp: keep one of the two",
            );
            errors.add(with_note(value, message, other, "also listed here"));
        }
    }
}

fn numbers(statuses: &[Status<'_>]) -> Vec<u16> {
    statuses.iter().map(|(status, _)| *status).collect()
}
