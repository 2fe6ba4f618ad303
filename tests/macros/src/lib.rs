//! The error messages for wrong use of `#[remat]` are tested in `tests/`; this library is empty.
