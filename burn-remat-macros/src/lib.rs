//! The place of the `#[remat]` attribute, which will carry a budget on a model and name the stages of a chain. It exports
//! nothing yet: until then use `RematExt::remat` of `burn-remat`.
