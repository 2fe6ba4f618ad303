//! A network as a list of layers with shapes, from which costs and sizes follow.
//!
//! A layer is one op of the forward pass; [`lower`](super::lower) adds the backward pass. Convolutions are padded so
//! that the output has the size of the input divided by the stride, rounded up. Nothing here can overflow: sizes
//! saturate, and the graph's own validation rejects what is then too large.

/// Index of a layer of a [`Net`]. Index 0 is the network's input.
pub type Node = usize;

/// Shape of one image's activation: `[channels, height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Channels, or features of a vector.
    pub channels: u64,
    /// Rows; 1 for a vector.
    pub height: u64,
    /// Columns; 1 for a vector.
    pub width: u64,
}

impl Shape {
    /// Number of elements of one image.
    pub fn elements(self) -> u64 {
        self.channels.saturating_mul(self.height).saturating_mul(self.width)
    }
}

/// How gradients pass through a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backward {
    /// One op that computes the gradient of every input.
    Op {
        /// It reads the layer's inputs.
        reads_inputs: bool,
        /// It reads the layer's output.
        reads_output: bool,
    },
    /// The gradient of the output is the gradient of every input, in the same storage: a sum.
    Shared,
    /// A sum that broadcasts smaller inputs: the gradient of each of them is summed by an op of its own.
    Spread,
}

/// Another way to run the forward op of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// Cost of one execution.
    pub cost: f64,
    /// Bytes held only while it runs.
    pub scratch_bytes: u64,
}

/// Another way to run the backward op of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct BackwardVariant {
    /// Name, to be appended to that of the op.
    pub name: &'static str,
    /// Cost relative to the op's own.
    pub cost_factor: f64,
    /// It reads the layer's inputs.
    pub reads_inputs: bool,
    /// It reads the layer's output.
    pub reads_output: bool,
    /// Bytes held only while it runs.
    pub scratch_bytes: u64,
}

/// What a layer does, as far as its alternative implementations depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A convolution over all channels.
    Convolution(Window),
    /// Batch normalization.
    BatchNorm,
    /// ReLU as an op of its own.
    Relu,
    /// Anything else.
    Other,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Name of its op.
    pub name: String,
    /// Stage of the model.
    pub stage: String,
    /// Layers that it reads.
    pub inputs: Vec<Node>,
    /// Bytes of its output.
    pub bytes: u64,
    /// Cost of its forward op.
    pub cost: f64,
    /// Cost of its backward op with the gradients of all inputs.
    pub backward_cost: f64,
    /// Part of the backward cost that goes to the gradient of an input; saved if that is the network's input.
    pub input_gradient_cost: f64,
    /// Number of trainable parameters.
    pub parameters: u64,
    /// Scratch of the forward op; its backward op has the same.
    pub scratch_bytes: u64,
    /// How gradients pass.
    pub backward: Backward,
    /// Layers whose outputs the backward op reads, perhaps including this one, if the flags of [`Backward`] are too
    /// coarse to express that.
    pub saves: Option<Vec<Node>>,
    /// Bytes of a second output that only the backward op reads: means and deviations, or the sums of a softmax.
    pub statistics_bytes: u64,
    /// Whether it is an input of the network: resident from the start, computed by no op.
    pub is_input: bool,
    /// Whether a gradient flows to it; none flows to inputs, masks and indices.
    pub needs_gradient: bool,
    /// Whether the forward op may run again.
    pub recomputable: bool,
    /// Other implementations of the forward op.
    pub variants: Vec<Variant>,
    /// Other implementations of the backward op.
    pub backward_variants: Vec<BackwardVariant>,
    /// What it does.
    pub kind: Kind,
}

/// Whether a layer applies a ReLU to its output within the same op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Linear.
    None,
    /// ReLU: its backward op reads the output.
    Relu,
}

/// Window and step of a convolution or pooling, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Side of the window.
    pub size: u64,
    /// Step of the window.
    pub stride: u64,
}

/// Shorthand for a [`Window`].
pub const fn window(size: u64, stride: u64) -> Window {
    Window { size, stride }
}

/// How many kernels a token layer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// One for each layer.
    Fused,
    /// One for each elementary operation.
    Elementary,
}

/// A network under construction. Layers read only earlier layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    /// Name of the graph.
    pub name: String,
    /// Images or sequences per step.
    pub batch: u64,
    /// The layers; entry 0 is the input and has no op.
    pub layers: Vec<Layer>,
    /// How many ops a token layer takes.
    pub kernels: Kernels,
    shapes: Vec<Shape>,
    stage: String,
}

impl Net {
    /// A network that reads images of shape `input`.
    pub fn new(name: &str, batch: u64, input: Shape) -> Self {
        let mut net = Self {
            name: format!("{name}-b{batch}"),
            batch,
            layers: Vec::new(),
            kernels: Kernels::Fused,
            shapes: Vec::new(),
            stage: "input".to_owned(),
        };
        net.input("input", input);
        net
    }

    /// Adds another input.
    pub fn input(&mut self, name: &str, shape: Shape) -> Node {
        let node = self.push(name, &[], shape, 0.0, Backward::Shared);
        self.layers[node].is_input = true;
        self.layers[node].needs_gradient = false;
        node
    }

    /// Names the stage of the layers that follow.
    pub fn stage(&mut self, name: impl Into<String>) -> &mut Self {
        self.stage = name.into();
        self
    }

    /// Shape of a layer's output.
    pub fn shape(&self, node: Node) -> Shape {
        self.shapes[node]
    }

    /// Total number of trainable parameters.
    pub fn parameters(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.parameters))
    }

    /// Adds a layer whose forward op takes `flops` per image and whose backward op takes the same.
    pub fn push(&mut self, name: &str, inputs: &[Node], shape: Shape, flops: f64, backward: Backward) -> Node {
        let cost = flops * self.batch as f64;
        self.layers.push(Layer {
            name: name.to_owned(),
            stage: self.stage.clone(),
            inputs: inputs.to_vec(),
            bytes: shape.elements().saturating_mul(self.batch).saturating_mul(4),
            cost,
            backward_cost: cost,
            input_gradient_cost: 0.0,
            parameters: 0,
            scratch_bytes: 0,
            backward,
            saves: None,
            statistics_bytes: 0,
            is_input: false,
            needs_gradient: true,
            recomputable: true,
            variants: Vec::new(),
            backward_variants: Vec::new(),
            kind: Kind::Other,
        });
        self.shapes.push(shape);
        self.layers.len() - 1
    }

    /// A layer with weights: `macs` multiply-adds per image forward, twice that backward (weights and input).
    pub(super) fn weighted(
        &mut self,
        name: &str,
        x: Node,
        shape: Shape,
        macs: f64,
        parameters: u64,
        activation: Activation,
    ) -> Node {
        let relu = activation == Activation::Relu;
        let elementwise = if relu { shape.elements() as f64 } else { 0.0 };
        let backward = Backward::Op { reads_inputs: true, reads_output: relu };
        let node = self.push(name, &[x], shape, 2.0 * macs + elementwise, backward);
        let batch = self.batch as f64;
        let layer = &mut self.layers[node];
        layer.backward_cost = (4.0 * macs + elementwise) * batch;
        layer.input_gradient_cost = 2.0 * macs * batch;
        layer.parameters = parameters;
        node
    }

    /// A convolution with bias.
    pub fn conv(&mut self, name: &str, x: Node, channels: u64, window: Window, activation: Activation) -> Node {
        self.convolution(name, x, channels, window, channels, activation)
    }

    /// A convolution without bias, as used before a normalization.
    pub fn conv_no_bias(&mut self, name: &str, x: Node, channels: u64, window: Window) -> Node {
        self.convolution(name, x, channels, window, 0, Activation::None)
    }

    fn convolution(
        &mut self,
        name: &str,
        x: Node,
        channels: u64,
        window: Window,
        bias: u64,
        activation: Activation,
    ) -> Node {
        let from = self.shape(x);
        let shape = strided(Shape { channels, ..from }, window.stride);
        let weights = (window.size * window.size).saturating_mul(from.channels).saturating_mul(channels);
        let macs = (window.size * window.size * from.channels) as f64 * shape.elements() as f64;
        let node = self.weighted(name, x, shape, macs, weights.saturating_add(bias), activation);
        self.layers[node].kind = Kind::Convolution(window);
        node
    }

    /// A separate convolution of each channel, without bias.
    pub fn depthwise(&mut self, name: &str, x: Node, window: Window) -> Node {
        let from = self.shape(x);
        let shape = strided(from, window.stride);
        let taps = window.size * window.size;
        self.weighted(name, x, shape, taps as f64 * shape.elements() as f64, taps * from.channels, Activation::None)
    }

    /// A transposed 2x2 convolution with stride 2 and bias: doubles height and width.
    pub fn up_conv(&mut self, name: &str, x: Node, channels: u64) -> Node {
        let from = self.shape(x);
        let shape = Shape { channels, height: from.height * 2, width: from.width * 2 };
        let macs = from.channels as f64 * shape.elements() as f64;
        self.weighted(name, x, shape, macs, 4 * from.channels * channels + channels, Activation::None)
    }

    /// A fully connected layer with bias; it reads its input flattened.
    pub fn fully_connected(&mut self, name: &str, x: Node, units: u64, activation: Activation) -> Node {
        let features = self.shape(x).elements();
        let shape = Shape { channels: units, height: 1, width: 1 };
        self.weighted(name, x, shape, features as f64 * units as f64, features * units + units, activation)
    }

    /// Batch normalization: its backward op reads the input.
    pub fn batch_norm(&mut self, name: &str, x: Node) -> Node {
        let shape = self.shape(x);
        // Mean, variance, normalization and affine map take about four operations per number, backward twice that.
        let node = self.push(name, &[x], shape, 4.0 * shape.elements() as f64, reads_inputs());
        self.layers[node].backward_cost *= 2.0;
        self.layers[node].parameters = 2 * shape.channels;
        self.layers[node].kind = Kind::BatchNorm;
        node
    }

    /// ReLU as an op of its own: its backward op reads the output.
    pub fn relu(&mut self, name: &str, x: Node) -> Node {
        let shape = self.shape(x);
        let backward = Backward::Op { reads_inputs: false, reads_output: true };
        let node = self.push(name, &[x], shape, shape.elements() as f64, backward);
        self.layers[node].kind = Kind::Relu;
        node
    }

    /// ReLU as an op of its own whose backward op reads the input, as in the graphs published with MONeT; reading
    /// the output is an alternative of the op (MONeT's output-activated implementation).
    pub fn relu_of_input(&mut self, name: &str, x: Node) -> Node {
        let shape = self.shape(x);
        let node = self.push(name, &[x], shape, shape.elements() as f64, reads_inputs());
        self.layers[node].backward_variants.push(BackwardVariant {
            name: "by_output",
            cost_factor: 1.0,
            reads_inputs: false,
            reads_output: true,
            scratch_bytes: 0,
        });
        node
    }

    /// Maximum pooling: its backward op reads input and output to find the maxima again.
    pub fn max_pool(&mut self, name: &str, x: Node, window: Window) -> Node {
        let shape = strided(self.shape(x), window.stride);
        let flops = (window.size * window.size) as f64 * shape.elements() as f64;
        self.push(name, &[x], shape, flops, Backward::Op { reads_inputs: true, reads_output: true })
    }

    /// Average pooling: its backward op reads only the gradient.
    pub fn average_pool(&mut self, name: &str, x: Node, window: Window) -> Node {
        let shape = strided(self.shape(x), window.stride);
        let flops = (window.size * window.size) as f64 * shape.elements() as f64;
        self.push(name, &[x], shape, flops, Backward::Op { reads_inputs: false, reads_output: false })
    }

    /// Average over height and width.
    pub fn global_average(&mut self, name: &str, x: Node) -> Node {
        let from = self.shape(x);
        let shape = Shape { channels: from.channels, height: 1, width: 1 };
        let backward = Backward::Op { reads_inputs: false, reads_output: false };
        self.push(name, &[x], shape, from.elements() as f64, backward)
    }

    /// Sum of two layers of the same shape.
    pub fn add(&mut self, name: &str, a: Node, b: Node) -> Node {
        let shape = self.shape(a);
        self.push(name, &[a, b], shape, shape.elements() as f64, Backward::Shared)
    }

    /// Concatenation along the channels: its backward op copies out the parts of the gradient.
    pub fn concat(&mut self, name: &str, parts: &[Node]) -> Node {
        let channels = parts.iter().map(|&part| self.shape(part).channels).sum();
        let shape = Shape { channels, ..self.shape(parts[0]) };
        let backward = Backward::Op { reads_inputs: false, reads_output: false };
        self.push(name, parts, shape, shape.elements() as f64, backward)
    }

    /// Softmax cross entropy, averaged to one number per image and position: the end of every network.
    pub fn loss(&mut self, x: Node) -> Node {
        self.stage("loss").cross_entropy("loss", x)
    }

    /// The same, for use within the network.
    pub fn cross_entropy(&mut self, name: &str, x: Node) -> Node {
        let from = self.shape(x);
        let shape = Shape { channels: 1, ..from };
        self.push(name, &[x], shape, 5.0 * from.elements() as f64, reads_inputs())
    }
}

fn reads_inputs() -> Backward {
    Backward::Op { reads_inputs: true, reads_output: false }
}

fn strided(shape: Shape, stride: u64) -> Shape {
    Shape { height: shape.height.div_ceil(stride), width: shape.width.div_ceil(stride), ..shape }
}
