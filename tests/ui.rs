//! The compile-time suite: what the macros accept, and what they say about everything else.

/// The expected messages are those of the pinned compiler. `TRYBUILD=overwrite` writes them anew.
#[test]
fn misuse_is_explained_and_every_form_compiles() {
    let cases = trybuild::TestCases::new();
    cases.pass("ui/pass/*.rs");
    cases.compile_fail("ui/fail/*.rs");
}
