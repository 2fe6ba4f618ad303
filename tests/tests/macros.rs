//! `#[remat]` on real modules: configurations that arrive as written, in every order and with generics; and stages that
//! cover what they should. What it refuses is tested in `tests/macros`.

use std::time::Duration;

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, activation};
use burn_remat::{AdvancedConfig, Budget, RandomPolicy, RematConfig, RematExt, RematModule, remat};
use burn_remat_examples::device::under_test;

#[remat(
    budget = "8 GiB",
    planner = "chain-dp",
    time_limit = 2.5,
    strict,
    random = "reseed",
    recompute_limit = 3,
    no_cache
)]
#[derive(Module, Debug)]
struct Before {
    layer: Linear,
}

#[derive(Module, Debug)]
#[remat(budget = 1_000_000, no_planning)]
struct After {
    layer: Linear,
}

#[derive(Config, Debug)]
#[remat(budget = "60%", planner = "revolve", cache = "plans")]
struct Settings {
    width: usize,
}

#[remat(budget = "unlimited")]
#[derive(Config, Debug)]
enum Kind {
    Small,
    Large(usize),
}

#[remat(budget = "1.5 GiB")]
#[derive(Module, Debug)]
struct Generic<M: Module, const N: usize>
where
    M: std::fmt::Debug,
{
    layers: [M; N],
}

/// Configurations are compared by their `Debug` output.
fn same(one: RematConfig, other: RematConfig) {
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    one.validated().unwrap();
}

#[test]
fn a_model_brings_the_configuration_that_is_written_on_it() {
    let all = RematConfig::new("8 GiB")
        .with_planner("chain-dp")
        .with_time_limit(Duration::from_millis(2500))
        .strict()
        .with_random(RandomPolicy::Reseed)
        .advanced(|advanced| advanced.with_recompute_limit(3.0))
        .without_cache();
    same(Before::remat_config(), all);
    same(After::remat_config(), RematConfig::new(1_000_000_u64).advanced(AdvancedConfig::without_planning));
    same(Settings::remat_config(), RematConfig::new(Budget::Share(0.6)).with_planner("revolve").with_cache("plans"));
    same(Kind::remat_config(), RematConfig::new(Budget::Unlimited));
    same(Generic::<Linear, 3>::remat_config(), RematConfig::new(3_u64 << 29));
    assert!(matches!((Kind::Small, Kind::Large(Settings::new(3).width)), (Kind::Small, Kind::Large(3))));
}

#[test]
fn a_model_gives_its_own_device() {
    let device = After::remat_device(&under_test().autodiff()).unwrap();
    assert!(device.is_autodiff());
    let model = After { layer: LinearConfig::new(4, 4).init(&device) };
    let y = model.layer.forward(Tensor::<2>::ones([2, 4], &device));
    assert_eq!(y.dims(), [2, 4]);
    assert_eq!(device.remat_report().unwrap().budget_bytes, Some(1_000_000));
}

// ---- stages

struct Batch {
    images: Tensor<2>,
}

type Labelled = (Tensor<2>, Tensor<1, Int>);

#[remat]
impl Before {
    fn new(device: &Device) -> Self {
        Self { layer: LinearConfig::new(4, 4).init(device) }
    }

    /// A stage because of its name. Its device is that of `self`, because the batch hides its tensors.
    fn forward(&self, batch: Batch) -> Tensor<2> {
        self.project(batch.images)
    }

    #[remat]
    fn project(&self, x: Tensor<2>) -> Tensor<2> {
        self.layer.forward(x)
    }

    #[remat(stage = "by name")]
    fn other<'a, T: Into<f32>>(&'a self, x: &'a Tensor<2>, scale: T) -> (Tensor<2>, &'a Linear) {
        (x.clone() * scale.into(), &self.layer)
    }

    fn unmarked(&self, x: Tensor<2>) -> Tensor<2> {
        x * 3.0
    }
}

#[remat(stage = "generic")]
impl<M: Module + std::fmt::Debug, const N: usize> Generic<M, N> {
    fn forward(&self, mut x: Tensor<2>, f: impl Fn(&M, Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        for layer in &self.layers {
            x = f(layer, x);
        }
        x
    }
}

impl After {
    #[remat]
    fn alone(&self, x: Tensor<2>) -> Tensor<2> {
        self.layer.forward(x)
    }
}

#[remat]
fn patterns((x, labels): Labelled, [first, _]: [Tensor<2>; 2], rest: Option<&Tensor<2>>) -> Result<Tensor<2>, String> {
    let rest = rest.ok_or("nothing")?;
    Ok(x + first + rest.clone() + labels.float().unsqueeze())
}

#[remat]
#[allow(clippy::boxed_local, reason = "any receiver and any argument must work")]
fn boxed(x: Box<Tensor<2>>, list: &mut Vec<Tensor<2>>) -> Tensor<2> {
    list.push(*x * 2.0);
    list[0].clone()
}

#[remat]
fn depth(x: Tensor<2>, left: usize) -> Tensor<2> {
    if left == 0 { activation::relu(x) } else { depth(x + 1.0, left - 1) }
}

#[remat(step)]
fn step(model: &Before, x: Tensor<2>) -> f32 {
    model.unmarked(x).sum().into_scalar()
}

/// Operations by stage.
fn stages(device: &Device) -> Vec<(String, u64)> {
    let report = device.remat_report().unwrap();
    report.stages.into_iter().map(|stage| (stage.stage, stage.operations)).collect()
}

fn names(device: &Device) -> Vec<String> {
    stages(device).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn stages_are_named_after_types_and_functions() {
    let device = under_test().remat(Budget::Unlimited).unwrap();
    let x = Tensor::<2>::ones([4, 4], &device);
    let model = Before::new(&device);
    model.forward(Batch { images: x.clone() });
    let (y, _) = model.other(&x, 2.0);
    model.unmarked(y);
    assert_eq!(names(&device), ["Before::forward/Before::project", "by name"]);

    let device = under_test().remat(Budget::Unlimited).unwrap();
    let x = Tensor::<2>::ones([4, 4], &device);
    let layers = [(); 2].map(|()| LinearConfig::new(4, 4).init(&device));
    let model = Generic { layers };
    model.forward(x.clone(), |layer, x| layer.forward(x));
    After { layer: LinearConfig::new(4, 4).init(&device) }.alone(x.clone());
    boxed(Box::new(x.clone()), &mut Vec::new());
    let labels = Tensor::<1, Int>::from_data([1, 2, 3, 4], &device);
    assert!(patterns((x.clone(), labels.clone()), [x.clone(), x.clone()], None).is_err());
    patterns((x.clone(), labels), [x.clone(), x.clone()], Some(&x)).unwrap();
    assert_eq!(names(&device), ["generic", "alone", "boxed", "patterns"]);
}

#[test]
fn recursion_nests() {
    let device = under_test().remat(Budget::Unlimited).unwrap();
    depth(Tensor::<2>::ones([4, 4], &device), 2);
    let expected = [("depth", 1), ("depth/depth", 1), ("depth/depth/depth", 1)];
    assert_eq!(stages(&device), expected.map(|(name, count)| (name.to_owned(), count)));
    // Deeper than the engine distinguishes.
    depth(Tensor::<2>::ones([4, 4], &device), 200);
    assert_eq!(stages(&device).len(), 64);
    assert_eq!(stages(&device).iter().map(|(_, count)| count).sum::<u64>(), 3 + 201);
}

#[test]
fn a_marked_step_is_one() {
    let device = under_test().remat(Budget::Unlimited).unwrap();
    let model = Before::new(&device);
    for _ in 0..4 {
        step(&model, Tensor::<2>::ones([4, 4], &device));
    }
    let report = device.remat_report().unwrap();
    // The first mark comes after the batch is made, so what is before it counts as a step.
    assert_eq!(report.steps, 4);
    assert!(report.stages.is_empty());
}
