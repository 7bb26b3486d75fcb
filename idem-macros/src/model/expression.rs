//! The rules for the two expressions, `scope = ..` and `key = ..`: what they name, they must have.

use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprPath};

use super::signature::Parameters;
use crate::errors::{Errors, did_you_mean};

/// What the messages say about one option.
pub(super) struct Role {
    name: &'static str,
    constant: &'static str,
    remedy: &'static str,
}

pub(super) const SCOPE: Role = Role {
    name: "scope",
    constant: "this scope mentions no parameter: every caller would share it",
    remedy: "name what tells callers apart, like `scope = account`, or write `scope = global` if \
             sharing is meant",
};

pub(super) const KEY: Role = Role {
    name: "key",
    constant: "this key mentions no parameter: every request would carry the same key",
    remedy: "name the field that holds the key, like `key = form.request_id`, or leave `key` out \
             to read it from the header",
};

/// Reports names that are no parameters, uses of the transaction, and constants.
pub(super) fn check(
    expression: &Expr,
    role: &Role,
    parameters: &Parameters<'_>,
    errors: &mut Errors,
) {
    let mut names = Names::default();
    names.visit_expr(expression);
    let bindings: Vec<String> = parameters.bindings().iter().map(Ident::to_string).collect();
    let bindings: Vec<&str> = bindings.iter().map(String::as_str).collect();
    let mut mentions_parameter = names.is_opaque;
    for path in names.values {
        let Some(name) = path.path.get_ident() else {
            continue;
        };
        let is_parameter = bindings.contains(&&*name.to_string());
        let is_constant = !is_parameter && starts_upper_case(name);
        mentions_parameter |= !is_constant;
        if parameters.transaction_bindings().contains(name) {
            errors.at(path, transaction_is_later(name, role));
        } else if !is_parameter && !is_constant {
            errors.at(path, unknown(&name.to_string(), &bindings));
        }
    }
    if !mentions_parameter {
        errors.at(
            expression,
            format!("{}\nhelp: {}", role.constant, role.remedy),
        );
    }
}

/// Variants, constants and statics start with a capital.
fn starts_upper_case(name: &Ident) -> bool {
    name.to_string().starts_with(char::is_uppercase)
}

fn transaction_is_later(name: &Ident, role: &Role) -> String {
    let Role {
        name: option,
        remedy,
        ..
    } = role;
    format!(
        "`{name}` is the transaction: it does not exist yet when the {option} is read\n\
         help: {remedy}",
    )
}

fn unknown(name: &str, known: &[&str]) -> String {
    let help = match known {
        [] => "help: it has no parameter with a name".to_owned(),
        known => did_you_mean(name, "its parameters are", known),
    };
    format!("`{name}` is not a parameter of this handler\n{help}")
}

/// The names an expression takes values from.
#[derive(Default)]
struct Names<'a> {
    values: Vec<&'a ExprPath>,
    /// Holds something that can bind names of its own, or a macro: it is trusted to mention a parameter.
    is_opaque: bool,
}

impl<'a> Visit<'a> for Names<'a> {
    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Async(_)
            | Expr::Block(_)
            | Expr::Closure(_)
            | Expr::Const(_)
            | Expr::ForLoop(_)
            | Expr::If(_)
            | Expr::Let(_)
            | Expr::Loop(_)
            | Expr::Macro(_)
            | Expr::Match(_)
            | Expr::TryBlock(_)
            | Expr::Unsafe(_)
            | Expr::Verbatim(_)
            | Expr::While(_) => self.is_opaque = true,
            other => visit::visit_expr(self, other),
        }
    }

    fn visit_expr_path(&mut self, path: &'a ExprPath) {
        if path.qself.is_none() {
            self.values.push(path);
        }
    }

    /// The called function lives outside the handler; only its arguments are values.
    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        if !matches!(&*call.func, Expr::Path(_)) {
            self.visit_expr(&call.func);
        }
        for argument in &call.args {
            self.visit_expr(argument);
        }
    }
}
