//! What people read who use `#[remat]` wrongly is tested in `tests/`; this library is empty.
