//! `#[remat]` on a model: generates its configuration.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Generics, Ident};

use crate::settings::Settings;

/// The item, unchanged, and its configuration.
pub(crate) fn expand(settings: &Settings, name: &Ident, generics: &Generics, item: &impl ToTokens) -> TokenStream {
    let (parameters, arguments, bounds) = generics.split_for_impl();
    let Settings { budget, calls, .. } = settings;
    quote! {
        #item

        #[automatically_derived]
        impl #parameters ::burn_remat::RematModule for #name #arguments #bounds {
            fn remat_config() -> ::burn_remat::RematConfig {
                ::burn_remat::RematConfig::new(#budget) #(.#calls)*
            }
        }
    }
}
