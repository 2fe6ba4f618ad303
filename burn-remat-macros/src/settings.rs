//! The settings in parentheses: `key = value` or a bare key. An error points at the setting that is wrong.

use burn_remat_grammar::{BUDGET_FORMS, ZERO_BYTES, budget, nearest};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitStr, Token, UnOp};

/// The kind of item that the attribute is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Model,
    Impl,
    Fn,
}

const MODEL_KEYS: [&str; 9] =
    ["budget", "planner", "time_limit", "strict", "random", "recompute_limit", "cache", "no_cache", "no_planning"];
const STAGE_KEYS: [&str; 3] = ["stage", "policy", "step"];

const POLICIES: [&str; 4] = ["must-save", "prefer-save", "prefer-recompute", "must-recompute"];

/// Settings that contradict each other, and why.
const CONFLICTS: [(&str, &str, &str); 4] = [
    ("cache", "no_cache", "plans are either kept or not"),
    ("planner", "no_planning", "without planning there is no planner"),
    ("time_limit", "no_planning", "without planning there is nothing to limit"),
    ("cache", "no_planning", "without planning there is nothing to keep"),
];

/// The longest time limit of a planner, in seconds: between eleven and twelve days.
const LONGEST: f64 = 1e6;

/// The settings that were valid, in the order in which they were written.
#[derive(Default)]
pub(crate) struct Settings {
    /// What each setting of a model does to its configuration. The budget is an argument of its constructor.
    pub budget: TokenStream,
    pub calls: Vec<TokenStream>,
    /// A name for the stage.
    pub stage: Option<LitStr>,
    /// What may happen to its results.
    pub policy: Option<Policy>,
    /// Whether a training step begins with the function.
    pub step: bool,
}

/// A policy, and where it was written.
#[derive(Clone)]
pub(crate) struct Policy {
    pub name: LitStr,
    pub value: TokenStream,
}

struct Setting {
    key: Ident,
    value: Option<Expr>,
}

impl Parse for Setting {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        use syn::ext::IdentExt;
        let key = input.call(Ident::parse_any).map_err(|error| {
            Error::new(error.span(), "write settings as `key = value` or `key`, for example `budget = \"8 GiB\"`")
        })?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        Ok(Self { key, value })
    }
}

impl Setting {
    /// Its value, which must be a string.
    fn text(&self, example: &str) -> Result<&LitStr, Error> {
        match &self.value {
            Some(Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => Ok(text),
            Some(other) => {
                Err(Error::new(other.span(), format!("`{}` is a string: write `{} = {example}`", self.key, self.key)))
            }
            None => Err(self.lacks(example)),
        }
    }

    /// Its value, which must be a number from 0 to `most`.
    fn number(&self, what: &str, example: &str, most: f64) -> Result<f64, Error> {
        let expected =
            |span| Error::new(span, format!("`{}` is {what}, for example `{} = {example}`", self.key, self.key));
        let Some(value) = &self.value else { return Err(self.lacks(example)) };
        if let Expr::Unary(negative) = value
            && matches!(negative.op, UnOp::Neg(_))
        {
            return Err(Error::new(value.span(), format!("`{}` cannot be negative", self.key)));
        }
        let number = match value {
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<u64>()? as f64,
            Expr::Lit(ExprLit { lit: Lit::Float(number), .. }) => number.base10_parse::<f64>()?,
            other => return Err(expected(other.span())),
        };
        if number.is_finite() && number <= most {
            Ok(number)
        } else {
            Err(Error::new(value.span(), format!("`{}` can be at most {most}", self.key)))
        }
    }

    /// For a key that takes no value.
    fn bare(&self) -> Result<(), Error> {
        match &self.value {
            None => Ok(()),
            Some(value) => Err(Error::new(
                value.span(),
                format!("`{}` takes no value: write `{}` alone, or leave it out", self.key, self.key),
            )),
        }
    }

    fn lacks(&self, example: &str) -> Error {
        Error::new(self.key.span(), format!("`{}` needs a value: write `{} = {example}`", self.key, self.key))
    }
}

impl Settings {
    /// A parser for the settings that `place` takes. `on` is the position of the item, for an error about a missing setting.
    pub fn parse(place: Place, on: Span) -> impl FnOnce(ParseStream<'_>) -> syn::Result<Self> {
        move |input| {
            let list = Punctuated::<Setting, Token![,]>::parse_terminated(input)?;
            Self::of(list.iter().collect(), place, on)
        }
    }

    fn of(list: Vec<&Setting>, place: Place, on: Span) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut errors: Vec<Error> = Vec::new();
        for (at, setting) in list.iter().enumerate() {
            let twice = list[..at].iter().any(|earlier| earlier.key == setting.key);
            let done = if twice {
                Err(Error::new(setting.key.span(), format!("`{}` is set twice", setting.key)))
            } else {
                found.take(setting, place)
            };
            errors.extend(done.err());
        }
        let key = |name: &str| list.iter().map(|setting| &setting.key).find(|key| *key == name);
        for (one, other, reason) in CONFLICTS {
            if let (Some(_), Some(second)) = (key(one), key(other)) {
                let message = format!("`{one}` and `{other}` contradict each other: {reason}");
                errors.push(Error::new(second.span(), message));
            }
        }
        if place == Place::Model && key("budget").is_none() && errors.is_empty() {
            let message = "a model needs a budget: `#[remat(budget = \"8 GiB\")]`, or `budget = \"unlimited\"`";
            errors.push(Error::new(if list.is_empty() { on } else { list[0].key.span() }, message));
        }
        match errors.into_iter().reduce(|mut all, error| {
            all.combine(error);
            all
        }) {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    fn take(&mut self, setting: &Setting, place: Place) -> Result<(), Error> {
        let key = setting.key.to_string();
        match (place, key.as_str()) {
            (Place::Model, "budget") => self.budget = budget_of(setting)?,
            (Place::Model, name) if MODEL_KEYS.contains(&name) => self.calls.push(call_of(setting, name)?),
            (Place::Impl | Place::Fn, "stage") => self.stage = Some(stage_of(setting)?),
            (Place::Impl | Place::Fn, "policy") => self.policy = Some(policy_of(setting)?),
            (Place::Fn, "step") => {
                setting.bare()?;
                self.step = true;
            }
            _ => return Err(misplaced(&setting.key, &key, place)),
        }
        Ok(())
    }
}

/// The error for a key that `place` does not take.
fn misplaced(key: &Ident, name: &str, place: Place) -> Error {
    let (known, takes) = match place {
        Place::Model => (&MODEL_KEYS[..], format!("a model takes {}", list(&MODEL_KEYS))),
        Place::Impl => (&STAGE_KEYS[..2], format!("an `impl` block takes {}", list(&STAGE_KEYS[..2]))),
        Place::Fn => (&STAGE_KEYS[..], format!("a `fn` takes {}", list(&STAGE_KEYS))),
    };
    let message = match (nearest(name, known), place) {
        (_, Place::Model) if STAGE_KEYS.contains(&name) => {
            format!("`{name}` is for stages: it belongs on an `impl` block or a `fn`, not on a model")
        }
        (_, Place::Impl) if name == "step" => {
            "`step` marks a function that begins a training step: put `#[remat(step)]` on that `fn`".to_owned()
        }
        (_, Place::Impl | Place::Fn) if MODEL_KEYS.contains(&name) => {
            format!("`{name}` configures a model: it belongs on its `struct` or `enum`; {takes}")
        }
        (Some(meant), _) => format!("there is no setting `{name}`: did you mean `{meant}`?"),
        (None, _) => format!("there is no setting `{name}`: {takes}"),
    };
    Error::new(key.span(), message)
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn budget_of(setting: &Setting) -> Result<TokenStream, Error> {
    if let Some(Expr::Lit(ExprLit { lit: Lit::Int(bytes), .. })) = &setting.value {
        let number: u64 = bytes.base10_parse()?;
        if number == 0 {
            return Err(Error::new(bytes.span(), format!("`0` is not a budget: {ZERO_BYTES}. {BUDGET_FORMS}")));
        }
        return Ok(quote!(#number));
    }
    if let Some(Expr::Unary(value)) = &setting.value {
        return Err(Error::new(value.span(), "a budget cannot be negative"));
    }
    let text = setting.text("\"8 GiB\"")?;
    match budget(&text.value()) {
        Ok(_) => Ok(quote!(#text)),
        Err(reason) => {
            Err(Error::new(text.span(), format!("`{}` is not a budget: {reason}. {BUDGET_FORMS}", text.value())))
        }
    }
}

/// The call that applies a setting of a model to its configuration.
fn call_of(setting: &Setting, key: &str) -> Result<TokenStream, Error> {
    Ok(match key {
        "planner" => {
            let name = setting.text("\"auto\"")?;
            // The registry is asked when the generated code is compiled: this crate knows no planners.
            let unknown = format!(
                "there is no planner `{}`: `remat-plan list` shows all planners; `auto` suits most programs",
                name.value()
            );
            let is_planner = quote_spanned!(name.span()=> ::burn_remat::planner::is_planner(#name));
            let refusal = quote_spanned!(name.span()=> ::core::panic!("{}", #unknown));
            quote!(with_planner({
                const _: () = if !#is_planner { #refusal };
                #name
            }))
        }
        "time_limit" => {
            let seconds = setting.number("a number of seconds", "10", LONGEST)?;
            quote!(with_time_limit(::core::time::Duration::from_secs_f64(#seconds)))
        }
        "strict" => {
            setting.bare()?;
            quote!(strict())
        }
        "random" => {
            let policy = setting.text("\"keep\"")?;
            match policy.value().as_str() {
                "keep" => quote!(with_random(::burn_remat::RandomPolicy::Keep)),
                "reseed" => quote!(with_random(::burn_remat::RandomPolicy::Reseed)),
                other => {
                    let message = format!(
                        "`{other}` is not a policy for random results: use `\"keep\"` (kept, so that the random stream \
                         is plain Burn's) or `\"reseed\"` (drawn again, which saves their memory)"
                    );
                    return Err(Error::new(policy.span(), message));
                }
            }
        }
        "recompute_limit" => {
            let what = "the time that a step may spend on recomputation, as a multiple of its own compute time";
            let times = setting.number(what, "20", f64::MAX)?;
            quote!(advanced(|advanced| advanced.with_recompute_limit(#times)))
        }
        "cache" => {
            let folder = setting.text("\"folder\"")?;
            if folder.value().is_empty() {
                return Err(Error::new(folder.span(), "name a folder, or write `no_cache`"));
            }
            quote!(with_cache(#folder))
        }
        "no_cache" => {
            setting.bare()?;
            quote!(without_cache())
        }
        _ => {
            setting.bare()?;
            quote!(advanced(|advanced| advanced.without_planning()))
        }
    })
}

fn policy_of(setting: &Setting) -> Result<Policy, Error> {
    let name = setting.text("\"must-recompute\"")?;
    let value = match name.value().as_str() {
        "must-save" => quote!(MustSave),
        "prefer-save" => quote!(PreferSave),
        "prefer-recompute" => quote!(PreferRecompute),
        "must-recompute" => quote!(MustRecompute),
        other => {
            let hint = match nearest(other, &POLICIES) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("the policies are {}", list(&POLICIES)),
            };
            return Err(Error::new(name.span(), format!("there is no policy `{other}`: {hint}")));
        }
    };
    Ok(Policy { name: name.clone(), value: quote!(::burn_remat::CheckpointPolicy::#value) })
}

fn stage_of(setting: &Setting) -> Result<LitStr, Error> {
    let name = setting.text("\"encoder\"")?;
    if name.value().trim().is_empty() {
        return Err(Error::new(name.span(), "a stage's name cannot be empty"));
    }
    Ok(name.clone())
}
