//! What counts as a failure where everything is meant to be there.

/// Whether what is missing is to be a failure.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}
