//! The `#[remat]` attribute.
