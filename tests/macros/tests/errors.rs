//! The error messages for invalid attributes: each case in `ui/` fails in the macro itself, so none
//! needs Burn.

#[test]
fn errors_point_at_what_is_wrong_and_say_what_is_right() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
}
