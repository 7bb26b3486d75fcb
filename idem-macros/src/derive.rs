//! `#[derive(ScopeKey)]`: rules and expansion.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;
use syn::{Attribute, Data, DataEnum, DeriveInput, Field, Fields, Member, Path, parse_quote};

use crate::errors::Errors;

// Input:
//
//     #[derive(ScopeKey)]
//     enum Caller {
//         User(UserId),
//         Service { name: String, #[scope(skip)] started: Instant },
//     }
//
// Output, with `P` for `::idem_runtime::__private`:
//
//     impl P::ScopeKey for Caller {
//         fn write_scope(&self, __idem_scope: &mut P::ScopeWriter) {
//             match self {
//                 Self::User(__idem_0) => {
//                     P::ScopeWriter::part(__idem_scope, "User");
//                     P::ScopeKey::write_scope(__idem_0, __idem_scope);
//                 }
//                 Self::Service { name: __idem_0, .. } => {
//                     P::ScopeWriter::part(__idem_scope, "Service");
//                     P::ScopeKey::write_scope(__idem_0, __idem_scope);
//                 }
//             }
//         }
//     }
//
// A struct is written as its fields alone, without a name in front.
pub(crate) fn scope_key(input: &DeriveInput) -> TokenStream {
    let mut errors = Errors::default();
    let krate = crate_path(&input.attrs, &mut errors);
    let private = quote!(#krate::__private);
    let body = match &input.data {
        Data::Struct(data) => structure(input, &data.fields, &private, &mut errors),
        Data::Enum(data) => enumeration(input, data, &private, &mut errors),
        Data::Union(data) => {
            errors.at(
                data.union_token,
                "a union cannot be a scope: nobody knows which field holds",
            );
            TokenStream::new()
        }
    };
    if let Err(errors) = errors.finish() {
        return errors;
    }
    let name = &input.ident;
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#private::ScopeKey));
    }
    let (parameters, arguments, where_clause) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #parameters #private::ScopeKey for #name #arguments #where_clause {
            fn write_scope(&self, __idem_scope: &mut #private::ScopeWriter) {
                #body
            }
        }
    }
}

/// What the compiler is told about a scope that is the same for everyone.
const CONSTANT: &str = "is a constant scope: every caller would share it\n\
                        help: write `scope = global` if that is meant";

fn structure(
    input: &DeriveInput,
    fields: &Fields,
    private: &TokenStream,
    errors: &mut Errors,
) -> TokenStream {
    let written = written(fields, errors);
    if written.is_empty() {
        let reason = if fields.is_empty() {
            "has no fields: it"
        } else {
            "skips all its fields: it"
        };
        errors.at(
            &input.ident,
            format!("`{}` {reason} {CONSTANT}", input.ident),
        );
    }
    written
        .iter()
        .map(|(member, field)| write(&quote_spanned!(at(field)=> &self.#member), field, private))
        .collect()
}

fn enumeration(
    input: &DeriveInput,
    data: &DataEnum,
    private: &TokenStream,
    errors: &mut Errors,
) -> TokenStream {
    let mut differs = data.variants.len() > 1;
    let arms: Vec<TokenStream> = data
        .variants
        .iter()
        .map(|variant| {
            let written = written(&variant.fields, errors);
            differs |= !written.is_empty();
            let name = &variant.ident;
            let label = name.unraw().to_string();
            let fields = written.iter().map(|(_, field)| field).enumerate();
            let names: Vec<Ident> = fields
                .map(|(index, field)| format_ident!("__idem_{index}", span = at(field)))
                .collect();
            let members = written.iter().map(|(member, _)| member);
            let writes = written
                .iter()
                .zip(&names)
                .map(|((_, field), name)| write(&quote!(#name), field, private));
            quote! {
                Self::#name { #(#members: #names,)* .. } => {
                    #private::ScopeWriter::part(__idem_scope, #label);
                    #(#writes)*
                }
            }
        })
        .collect();
    if !differs {
        errors.at(
            &input.ident,
            format!(
                "`{}` has no two values that differ: it {CONSTANT}",
                input.ident
            ),
        );
    }
    quote!(match self { #(#arms)* })
}

fn write(value: &TokenStream, field: &Field, private: &TokenStream) -> TokenStream {
    quote_spanned!(at(field)=> #private::ScopeKey::write_scope(#value, __idem_scope);)
}

/// The place of a field's type: an error about it is reported there.
fn at(field: &Field) -> Span {
    Span::call_site().located_at(field.ty.span())
}

/// The fields that are part of the scope.
fn written<'a>(fields: &'a Fields, errors: &mut Errors) -> Vec<(Member, &'a Field)> {
    let mut written = Vec::new();
    for (field, member) in fields.iter().zip(fields.members()) {
        if !is_skipped(field, errors) {
            written.push((member, field));
        }
    }
    written
}

/// Reads `#[scope(skip)]`.
fn is_skipped(field: &Field, errors: &mut Errors) -> bool {
    let mut skipped = false;
    for attribute in helpers(&field.attrs) {
        errors.check(attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("skip") {
                return Err(meta.error("unknown option\nhelp: a field takes `#[scope(skip)]` only"));
            }
            skipped = true;
            Ok(())
        }));
    }
    skipped
}

/// Reads `#[scope(crate = path)]`.
fn crate_path(attributes: &[Attribute], errors: &mut Errors) -> Path {
    let mut path: Path = parse_quote!(::idem_runtime);
    for attribute in helpers(attributes) {
        errors.check(attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(
                    meta.error("unknown option\nhelp: a type takes `#[scope(crate = ..)]` only")
                );
            }
            path = meta.value()?.call(Path::parse_mod_style)?;
            Ok(())
        }));
    }
    path
}

fn helpers(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("scope"))
}

#[cfg(test)]
mod tests {
    use super::scope_key;

    fn pretty(item: &str) -> String {
        let tokens = scope_key(&syn::parse_str(item).unwrap());
        prettyplease::unparse(&syn::parse2(tokens).unwrap())
    }

    #[test]
    fn struct_is_written_as_its_fields() {
        insta::assert_snapshot!(pretty(
            "struct Account<'a, T: Clone> where T: Copy { tenant: &'a T, #[scope(skip)] seen: u8, user: u64 }"
        ));
    }

    #[test]
    fn enum_is_written_as_its_variants_name_and_fields() {
        insta::assert_snapshot!(pretty(
            "#[scope(crate = framework::idem)]
            enum Caller { r#None, User(u64, #[scope(skip)] u8, i8), Service { name: String, #[scope(skip)] at: u8 } }"
        ));
    }

    #[test]
    fn constant_scopes_are_refused() {
        for item in [
            "struct A;",
            "struct A {}",
            "struct A(#[scope(skip)] u8);",
            "enum A {}",
            "enum A { B }",
            "enum A { B { #[scope(skip)] c: u8 } }",
        ] {
            assert!(pretty(item).contains("constant scope"), "{item}");
        }
        for item in ["struct A(u8);", "enum A { B(u8) }", "enum A { B, C }"] {
            assert!(!pretty(item).contains("compile_error"), "{item}");
        }
    }
}
