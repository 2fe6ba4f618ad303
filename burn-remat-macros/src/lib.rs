//! The attribute `#[remat]`. `burn-remat` re-exports it as `burn_remat::remat` and documents it there.
//!
//! The item that it is on decides what it does: on a `struct` or an `enum` it sets a configuration (`model.rs`), on an `impl` block or a `fn` it names
//! stages (`stage.rs`). Settings are parsed in the same way for all of them (`settings.rs`). Budgets are checked with the library's own grammar,
//! `burn-remat-grammar`.
//!
//! If something is wrong, the item itself is returned beside the error, so that one mistake does not cause further errors.

mod model;
mod settings;
mod stage;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Error, Item};

use crate::settings::{Place, Settings};

#[allow(missing_docs, reason = "documented where `burn-remat` re-exports it")]
#[proc_macro_attribute]
pub fn remat(settings: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = TokenStream::from(item);
    expand(settings.into(), item.clone())
        .unwrap_or_else(|error| {
            let (item, error) = (stage::without_attributes(item), error.into_compile_error());
            quote!(#item #error)
        })
        .into()
}

fn expand(settings: TokenStream, tokens: TokenStream) -> Result<TokenStream, Error> {
    let item: Item = syn::parse2(tokens)?;
    let (place, on) = match &item {
        Item::Struct(item) => (Place::Model, item.span()),
        Item::Enum(item) => (Place::Model, item.span()),
        Item::Impl(item) => (Place::Impl, item.span()),
        Item::Fn(item) => (Place::Fn, item.span()),
        other => {
            let message = "`#[remat]` belongs on a model (a `struct` or an `enum`), where it sets a budget, or on an \
                           `impl` block or a `fn` with a body, where it names a stage";
            return Err(Error::new(other.span(), message));
        }
    };
    let settings = Settings::parse(place, on).parse2(settings)?;
    match item {
        Item::Struct(item) => Ok(model::expand(&settings, &item.ident, &item.generics, &item)),
        Item::Enum(item) => Ok(model::expand(&settings, &item.ident, &item.generics, &item)),
        Item::Impl(item) => stage::on_impl(&settings, item),
        Item::Fn(item) => stage::on_fn(&settings, item),
        other => Ok(other.into_token_stream()),
    }
}
