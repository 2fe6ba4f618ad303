//! `#[remat]` on an `impl` block or a `fn`: a guard at the beginning of each stage.
//!
//! A macro sees types only as text. So the guard gets a closure that shows it every argument, and the type of the argument decides, when the generated
//! code is compiled, whether the library finds tensors in it.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{
    Attribute, Block, Error, FnArg, Ident, ImplItem, ItemFn, ItemImpl, LitStr, Meta, Pat, PatIdent, Receiver,
    Signature, Stmt, Type, parse_quote,
};

use crate::settings::{Place, Policy, Settings};

/// A function outside of an `impl` block, or a method of a block that has no attribute.
pub(crate) fn on_fn(settings: &Settings, mut item: ItemFn) -> Result<TokenStream, Error> {
    mark(settings, &item.sig, &mut item.block, || item.sig.ident.to_string())?;
    Ok(item.into_token_stream())
}

/// The stages of a block: its methods called `forward`, and the functions in it that are marked themselves.
pub(crate) fn on_impl(settings: &Settings, mut item: ItemImpl) -> Result<TokenStream, Error> {
    let owner = type_name(&item.self_ty);
    let mut named = settings.stage.as_ref();
    let mut ruled = settings.policy.as_ref();
    let mut any = false;
    for member in &mut item.items {
        let ImplItem::Fn(method) = member else { continue };
        let own = take_attribute(&mut method.attrs)?;
        let is_forward = method.sig.ident == "forward" && method.sig.receiver().is_some();
        let mut settings = match own {
            Some(own) => Settings::parse(Place::Fn, method.sig.span()).parse2(own)?,
            None if is_forward => Settings::default(),
            None => continue,
        };
        if is_forward && settings.stage.is_none() {
            settings.stage = named.take().cloned();
        }
        if is_forward && settings.policy.is_none() {
            settings.policy = ruled.take().cloned();
        }
        any = true;
        let ident = method.sig.ident.clone();
        mark(&settings, &method.sig, &mut method.block, || format!("{owner}::{ident}"))?;
    }
    match (any, named, ruled) {
        (true, None, None) => Ok(item.into_token_stream()),
        (true, Some(name), _) => Err(Error::new(
            name.span(),
            "on an `impl` block, `stage` names its method `forward`, but there is none, or it has a name already",
        )),
        (true, None, Some(policy)) => Err(Error::new(
            policy.name.span(),
            "on an `impl` block, `policy` is for its method `forward`, but there is none, or it has a policy already",
        )),
        (false, ..) => Err(Error::new(
            item.self_ty.span(),
            "nothing here is a stage: there is no method `forward(&self, ..)`. Put `#[remat]` on the function that you mean",
        )),
    }
}

/// The block without the `#[remat]` of its functions: each of them would report an error of its own.
pub(crate) fn without_attributes(item: TokenStream) -> TokenStream {
    let Ok(mut block) = syn::parse2::<ItemImpl>(item.clone()) else { return item };
    for member in &mut block.items {
        if let ImplItem::Fn(method) = member {
            method.attrs.retain(|attribute| !is_remat(attribute));
        }
    }
    block.into_token_stream()
}

fn is_remat(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|name| name.ident == "remat")
}

/// Takes the settings of a `#[remat]` out of a method's attributes.
fn take_attribute(attributes: &mut Vec<Attribute>) -> Result<Option<TokenStream>, Error> {
    let Some(at) = attributes.iter().position(is_remat) else { return Ok(None) };
    let settings = match attributes.remove(at).meta {
        Meta::Path(_) => TokenStream::new(),
        Meta::List(list) => list.tokens,
        Meta::NameValue(pair) => {
            return Err(Error::new(pair.span(), "write `#[remat]` or `#[remat(stage = \"name\")]`"));
        }
    };
    match attributes.iter().find(|attribute| is_remat(attribute)) {
        Some(second) => Err(Error::new(second.span(), "one `#[remat]` per function is enough")),
        None => Ok(Some(settings)),
    }
}

/// The last segment of a type's path, or the whole type.
fn type_name(of: &Type) -> String {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Type::Reference(reference) => Some(type_name(&reference.elem)),
        _ => None,
    }
    .unwrap_or_else(|| of.to_token_stream().to_string())
}

/// Puts the guard at the beginning of a function.
fn mark(
    settings: &Settings,
    signature: &Signature,
    block: &mut Block,
    default: impl FnOnce() -> String,
) -> Result<(), Error> {
    refuse(signature)?;
    let arguments = arguments(signature);
    let look = quote! {
        |seen: &mut ::burn_remat::stage::Seen| {
            #[allow(unused_imports)]
            use ::burn_remat::stage::{SeeModule as _, SeeNothing as _, SeeTensors as _};
            #((&&&::burn_remat::stage::Look(#arguments)).see(seen);)*
        }
    };
    let mut marks: Vec<Stmt> = Vec::new();
    if settings.step {
        marks.push(parse_quote!(::burn_remat::stage::mark_step(#look);));
    }
    if !settings.step || settings.stage.is_some() || settings.policy.is_some() {
        let name = match &settings.stage {
            Some(name) => name.clone(),
            None => LitStr::new(&default(), signature.ident.span()),
        };
        let policy = match &settings.policy {
            Some(Policy { value, .. }) => quote!(::core::option::Option::Some(#value)),
            None => quote!(::core::option::Option::None),
        };
        // Hygienic: it cannot collide with a name in the function.
        let guard = Ident::new("remat_stage", Span::mixed_site());
        marks.push(parse_quote! {
            let #guard = {
                static STAGE: ::burn_remat::stage::StageName = ::burn_remat::stage::StageName::new(#name);
                ::burn_remat::stage::enter(&STAGE, #policy, #look)
            };
        });
    }
    block.stmts.splice(0..0, marks);
    Ok(())
}

/// Refuses functions for which a guard would not enclose exactly the operations of the call.
fn refuse(signature: &Signature) -> Result<(), Error> {
    if let Some(keyword) = &signature.asyncness {
        return Err(Error::new(
            keyword.span(),
            "an `async fn` cannot be a stage or a step: it runs in pieces, and what runs between them would count as part of \
             it. Put the part that does not await into a `fn` and mark that",
        ));
    }
    if let Some(keyword) = &signature.constness {
        return Err(Error::new(
            keyword.span(),
            "a `const fn` cannot be a stage or a step: it may run while the program compiles",
        ));
    }
    if let Some(keyword) = &signature.abi {
        return Err(Error::new(
            keyword.span(),
            "an `extern` function cannot be a stage or a step: it is an interface for other languages. Mark the Rust function that it \
             calls",
        ));
    }
    Ok(())
}

/// References to all variables that the arguments bind, in order.
fn arguments(signature: &Signature) -> Vec<TokenStream> {
    let mut found = Vec::new();
    for argument in &signature.inputs {
        match argument {
            FnArg::Receiver(receiver) => {
                let this = &receiver.self_token;
                found.push(if is_by_value(receiver) { quote!(&#this) } else { quote!(&*#this) });
            }
            FnArg::Typed(argument) => match &*argument.pat {
                Pat::Ident(name) if name.by_ref.is_none() && matches!(*argument.ty, Type::Reference(_)) => {
                    let name = &name.ident;
                    found.push(quote_spanned!(name.span()=> &*#name));
                }
                pattern => {
                    let mut names = Names(Vec::new());
                    names.visit_pat(pattern);
                    found.extend(names.0.into_iter().map(|name| quote_spanned!(name.span()=> &#name)));
                }
            },
        }
    }
    found
}

fn is_by_value(receiver: &Receiver) -> bool {
    let is_self = matches!(&*receiver.ty, Type::Path(path) if path.path.is_ident("Self"));
    receiver.reference.is_none() && is_self
}

/// The names that a pattern binds.
struct Names(Vec<Ident>);

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.0.push(pattern.ident.clone());
        syn::visit::visit_pat_ident(self, pattern);
    }
}
