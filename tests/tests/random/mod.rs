//! Random programs: a language of four-byte instructions, and what each does with Burn's own tensors.
//!
//! Every string of instructions is a valid program: numbers wrap around the available range, and an instruction that cannot be carried out does
//! nothing. So programs can be drawn at random and shortened at will. The result of a program is what it reads. A tensor has at most
//! [`MOST_NUMBERS`] values, and at most [`MOST_LIVE`] of a kind are alive, so a program of n instructions takes O(n).

#![allow(dead_code, reason = "each test file uses only some of it")]

mod pools;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use burn::tensor::module::{conv2d, max_pool2d_with_indices};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{DType, Device, Distribution, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use burn_remat::RematExt;

use pools::Pools;
pub use pools::Wire;

/// The operation, and three numbers.
pub type Instruction = [u8; 4];

/// Makes threads take turns: a backward pass must run alone, because it releases what the graphs of other threads still hold while these are
/// running, and Burn's routers lose a tensor that one thread reads while another drops the last other handle of it.
static TURNS: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

const MOST_NUMBERS: usize = 512;
const MOST_LIVE: usize = 12;
const SHAPES: [[usize; 2]; 6] = [[4, 4], [3, 8], [8, 3], [1, 16], [16, 16], [5, 7]];
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// A program running on two devices.
pub struct Program {
    devices: [Device; 2],
    pools: Pools,
    /// Tensors whose gradients are wanted.
    leaves: Vec<Tensor<2>>,
    seen: Vec<Vec<u8>>,
    wire: Wire,
    may_draw: bool,
}

impl Program {
    /// On `devices`, with or without autodiff. Without `may_draw` nothing is drawn from the generator that all devices share.
    pub fn new(devices: [&Device; 2], may_draw: bool, wire: Wire) -> Self {
        let devices = devices.map(|device| device.clone().autodiff());
        if may_draw {
            devices[0].seed(3);
        }
        Self { devices, pools: Pools::default(), leaves: Vec::new(), seen: Vec::new(), wire, may_draw }
    }

    /// Runs the instructions.
    pub fn run(&mut self, instructions: &[Instruction]) {
        for instruction in instructions {
            self.step(*instruction);
            self.pools.trim();
        }
    }

    /// Forgets everything but the leaves, as a training step does at its end.
    pub fn forget(&mut self) {
        self.pools = Pools::default();
    }

    /// Everything that was read, and what is still alive.
    pub fn finish(self) -> Vec<Vec<u8>> {
        let Self { devices, pools, leaves, mut seen, wire, .. } = self;
        drop(wire);
        let turn = beside_others();
        seen.extend(leaves.into_iter().map(bytes));
        pools.read(&mut seen);
        drop(turn);
        // Burn's autodiff releases a graph that had no backward pass only during the next backward pass.
        let _turn = alone();
        for device in &devices {
            let one = Tensor::<2>::ones([1, 1], device).require_grad();
            seen.extend(
                one.grad(&(one.clone() * 2.0).sum().backward())
                    .map(|gradient| gradient.into_data().as_bytes().to_vec()),
            );
        }
        seen
    }

    fn step(&mut self, [op, a, b, c]: Instruction) {
        if op % 40 == 39 {
            // It may wait for another thread, and takes its turn only when it does not.
            return self.control(a, b);
        }
        if op % 40 == 38 {
            let _turn = alone();
            return self.backward(a, b);
        }
        let _turn = beside_others();
        match op % 40 {
            0..=5 => self.create(op % 40, a, b, c),
            6..=13 => self.elementwise(op % 40, a, b),
            14..=19 => self.view(op % 40, a, b, c),
            20..=24 => self.several(op % 40, a, b),
            25..=29 => self.indexed(op % 40, a, b),
            30 | 31 => self.layers(op % 40, a, b),
            32..=34 => self.pools.drop_one(op % 40 - 32, a),
            35 => self.read(a, b),
            36 => self.moves(a),
            _ => self.leaf(a, c),
        }
    }

    fn device(&self, a: u8) -> &Device {
        &self.devices[usize::from(a % 2)]
    }

    fn create(&mut self, op: u8, a: u8, b: u8, c: u8) {
        let shape = SHAPES[usize::from(c) % SHAPES.len()];
        let (dtype, device) = (FLOATS[usize::from(b) % FLOATS.len()], self.device(c / 8).clone());
        match op {
            0 | 1 => self.pools.floats.push(upload(shape, a, &device).cast(dtype)),
            2 => {
                let numbers = (0..shape[0] * shape[1]).map(|at| ((at * 13 + usize::from(a)) % 127) as u8);
                self.pools.ints.push(ints(numbers, shape, b, &device));
            }
            3 => self.pools.floats.push(Tensor::full(shape, f32::from(a) / 64.0, (&device, dtype))),
            _ if !self.may_draw => self.pools.floats.push(Tensor::ones(shape, (&device, dtype))),
            4 => self.pools.floats.push(Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device)),
            _ => self.pools.floats.push(Tensor::random(shape, Distribution::Bernoulli(0.6), &device)),
        }
    }

    fn elementwise(&mut self, op: u8, a: u8, b: u8) {
        let Some(x) = self.pools.float(a, op == 6 || op == 7) else { return };
        let y = match op {
            6..=9 => unary(x, b),
            10 | 11 => {
                let Some(y) = self.pools.float(b, op == 11) else { return };
                let y = alike(y, &x);
                match (a ^ b) % 4 {
                    0 => x + y,
                    1 => x * y,
                    2 => x - y,
                    _ => x.max_pair(y),
                }
            }
            12 => {
                let Some(y) = self.pools.float(b, false) else { return };
                let y = y.cast(x.dtype()).to_device(&x.device());
                let [rows, inner] = x.dims();
                match y.dims() {
                    [other, columns] if other == inner && rows * columns <= MOST_NUMBERS => x.matmul(y),
                    [columns, other] if other == inner && rows * columns <= MOST_NUMBERS => x.matmul(y.transpose()),
                    _ => x.clone().matmul(x.transpose()),
                }
            }
            _ => {
                let dtype = FLOATS[usize::from(b) % FLOATS.len()];
                x.cast(dtype)
            }
        };
        self.pools.floats.push(y);
    }

    fn view(&mut self, op: u8, a: u8, b: u8, c: u8) {
        let Some(x) = self.pools.float(a, c % 2 == 1) else { return };
        let [rows, columns] = x.dims();
        let y = match op {
            14 => x.transpose(),
            15 => x.reshape([columns, rows]),
            16 => {
                let from = usize::from(b) % rows;
                x.narrow(0, from, rows - from)
            }
            17 => {
                let to = usize::from(b) % columns + 1;
                x.slice([0..rows, 0..to])
            }
            18 => x.flip([usize::from(b % 2)]),
            _ => {
                let value = x.clone().narrow(1, 0, 1) * 0.5;
                let column = usize::from(b) % columns;
                x.slice_assign([0..rows, column..column + 1], value)
            }
        };
        self.pools.floats.push(y);
    }

    fn several(&mut self, op: u8, a: u8, b: u8) {
        let Some(x) = self.pools.float(a, false) else { return };
        let [rows, columns] = x.dims();
        match op {
            20 => {
                let (values, indices) = x.max_dim_with_indices(1);
                self.pools.floats.push(values.expand([rows, columns]));
                self.pools.ints.push(indices.expand([rows, columns]));
            }
            21 => {
                let (values, indices) = x.sort_with_indices(1);
                self.pools.floats.push(values);
                self.pools.ints.push(indices);
            }
            22 => self.pools.floats.extend(x.chunk(usize::from(b % 3) + 1, 0)),
            23 => {
                let mean = match b % 3 {
                    0 => x.mean_dim(0),
                    1 => x.sum_dim(1),
                    _ => x.sum().reshape([1, 1]),
                };
                self.pools.floats.push(mean.expand([rows, columns]));
            }
            _ if 2 * rows * columns <= MOST_NUMBERS => {
                let Some(y) = self.pools.float(b, false) else { return };
                let y = alike(y, &x);
                self.pools.floats.push(Tensor::cat(vec![x, y], usize::from(b % 2)));
            }
            _ => self.pools.floats.push(x.cumsum(1)),
        }
    }

    fn indexed(&mut self, op: u8, a: u8, b: u8) {
        let Some(x) = self.pools.float(a, false) else { return };
        let (device, dims) = (x.device(), x.dims());
        let rows = dims[0] as i64;
        let indices = |at: u8| -> Tensor<1, Int> {
            let numbers = [i64::from(at) % rows, i64::from(at / 7) % rows, 0];
            Tensor::from_data(TensorData::from(numbers), &device)
        };
        match op {
            25 => self.pools.floats.push(x.select(0, indices(b))),
            26 => {
                let values = x.clone().narrow(0, 0, 1).expand([3, dims[1]]) * 0.25;
                self.pools.floats.push(x.select_assign(0, indices(b), values, IndexingUpdateOp::Add));
            }
            27 => {
                let Some(at) = self.pools.int(b, false) else { return };
                let at = at.to_device(&device).remainder_scalar(dims[1] as i64);
                if at.dims()[0] == dims[0] {
                    self.pools.floats.push(x.gather(1, at));
                }
            }
            28 => {
                let y = self.pools.float(b, false).map_or_else(|| x.clone(), |y| alike(y, &x));
                self.pools.bools.push(if b.is_multiple_of(2) { x.greater(y) } else { x.equal(y) });
            }
            _ => {
                let Some(mask) = self.pools.bool(b, b % 2 == 1) else { return };
                if mask.dims() == dims {
                    let mask = mask.to_device(&device);
                    let y =
                        if b.is_multiple_of(3) { x.mask_fill(mask, 0.5) } else { x.clone().mask_where(mask, x * 2.0) };
                    self.pools.floats.push(y);
                } else {
                    self.pools.ints.push(mask.clone().bool_not().int());
                    self.pools.bools.push(mask.clone().bool_and(mask.bool_not()));
                }
            }
        }
    }

    /// Layers of networks that have gradients of their own.
    fn layers(&mut self, op: u8, a: u8, b: u8) {
        let Some(x) = self.pools.float(a, false) else { return };
        let [rows, columns] = x.dims();
        let x = x.cast(DType::F32);
        if op == 30 || rows < 3 || columns < 3 {
            return self.pools.floats.push(activation::softmax(x, usize::from(b % 2)));
        }
        let kernel = upload([3, 3], b, &x.device()).reshape([1, 1, 3, 3]);
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let y = conv2d(x.reshape([1, 1, rows, columns]), kernel, None, options);
        let (y, at) = max_pool2d_with_indices(y, MaxPoolOptions::new([2, 2]).with_stride([1, 1]));
        self.pools.floats.push(y.reshape([rows - 1, columns - 1]));
        self.pools.ints.push(at.reshape([rows - 1, columns - 1]));
    }

    fn read(&mut self, a: u8, b: u8) {
        let read = match b % 4 {
            0 => self.pools.int(a, b.is_multiple_of(8)).map(|x| x.into_data()),
            1 => self.pools.bool(a, false).map(|x| x.into_data()),
            _ => self.pools.float(a, b % 8 == 2).map(|x| x.into_data()),
        };
        self.seen.extend(read.map(|data| data.as_bytes().to_vec()));
    }

    fn moves(&mut self, a: u8) {
        let other = self.device(a / 2).clone();
        if let Some(x) = self.pools.float(a, a.is_multiple_of(3)) {
            self.pools.floats.push(x.to_device(&other) * 1.5);
        }
        if let Some(x) = self.pools.int(a, true) {
            self.pools.ints.push(x.to_device(&other));
        }
    }

    fn leaf(&mut self, a: u8, c: u8) {
        if self.leaves.len() < 4 {
            let leaf = upload(SHAPES[usize::from(c) % SHAPES.len()], a, self.device(c / 8)).require_grad();
            self.leaves.push(leaf);
        }
        self.pools.floats.push(self.leaves[usize::from(a) % self.leaves.len()].clone());
    }

    /// Gradients of the leaves, and an update of some of them. This ends the graph behind all tensors.
    fn backward(&mut self, a: u8, b: u8) {
        let loss = self.pools.float(a, false).map(|x| x.cast(DType::F32).mean());
        self.pools.detach();
        let Some(gradients) = loss.filter(|loss| loss.is_tracked()).map(|loss| loss.backward()) else { return };
        for (at, leaf) in self.leaves.iter_mut().enumerate() {
            let Some(gradient) = leaf.grad(&gradients) else { continue };
            self.pools.floats.push(Tensor::from_inner(gradient.clone()));
            if b >> (at % 8) & 1 == 1 {
                let old = std::mem::replace(leaf, Tensor::zeros([1, 1], &self.devices[0]));
                *leaf = Tensor::from_inner(old.inner() - gradient * 0.125).require_grad();
            }
        }
    }

    fn control(&mut self, a: u8, b: u8) {
        let device = self.device(b).clone();
        if a % 4 == 3 {
            let gift = self.wire.take();
            self.pools.floats.extend(gift.map(Tensor::from_inner));
        }
        let _turn = beside_others();
        match a % 4 {
            0 => device.remat_mark_step(),
            1 => device.sync().expect("nothing has failed"),
            // A tensor of its own: Burn's routers lose one that a thread reads while another drops the last other handle of it.
            2 => self.wire.give(|| self.pools.float(b, false).map(|x| x.detach().inner() * 1.0)),
            _ => {
                let _stage = device.remat_stage("middle");
                self.elementwise(8, b, a);
            }
        }
    }
}

fn bytes(x: Tensor<2>) -> Vec<u8> {
    x.into_data().as_bytes().to_vec()
}

fn upload(shape: [usize; 2], seed: u8, device: &Device) -> Tensor<2> {
    let count = shape[0] * shape[1];
    let values: Vec<f32> = (0..count).map(|at| ((at * 31 + usize::from(seed) * 7) % 97) as f32 / 48.0 - 1.0).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Numbers as integers of one of three types. Burn's groups of devices cannot cast one into another.
fn ints(numbers: impl Iterator<Item = u8>, shape: [usize; 2], kind: u8, device: &Device) -> Tensor<2, Int> {
    let (data, dtype) = match kind % 3 {
        0 => (TensorData::new(numbers.map(i64::from).collect::<Vec<_>>(), shape), DType::I64),
        1 => (TensorData::new(numbers.map(i32::from).collect::<Vec<_>>(), shape), DType::I32),
        _ => (TensorData::new(numbers.collect::<Vec<u8>>(), shape), DType::U8),
    };
    Tensor::from_data(data, (device, dtype))
}

/// `y` in the shape and type of `x` and on its device: `y` itself, or its mean everywhere.
fn alike(y: Tensor<2>, x: &Tensor<2>) -> Tensor<2> {
    let y = y.cast(x.dtype()).to_device(&x.device());
    if y.dims() == x.dims() { y } else { y.mean().reshape([1, 1]).expand(x.dims()) }
}

fn unary(x: Tensor<2>, b: u8) -> Tensor<2> {
    match b % 7 {
        0 => x.tanh(),
        1 => x * 0.75,
        2 => x + 0.5,
        3 => activation::relu(x),
        4 => (x.abs() + 1.0).recip(),
        5 => x.sin(),
        _ => (x.clamp(-2.0, 2.0)).exp(),
    }
}
