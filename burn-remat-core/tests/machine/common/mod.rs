//! A world without tensors: every buffer is a number that stands for what the tensor would contain in plain Burn.
//!
//! It runs what the machine commands, and counts bytes by itself. It shares no code with the machine, so it is the naive
//! observer: what a program reads is compared with a plain interpretation of the program, and what is held with what the machine says.
//!
//! Larger than the rule: `run`, because it is all that the observer does for one command, in the order in which it is done.

pub mod asked;
pub mod naive;
pub mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn_remat_core::{
    Alternative, Asking, Buffer, Compressible, Config, Driver, Event, Failure, Followed, Kind, Left, Limits, Machine,
    Made, Need, OpKey, Operation, OperationCall, Planning, Ran, Run, Schedule, Source, Substitute, TensorFacts,
    TensorId, Trace, TracedOp, World,
};

pub use asked::{Asked, Content, ONE, Works, hash};

#[derive(Clone, Copy, Debug)]
struct Handle {
    buffer: u64,
    content: Content,
}

/// See the [module](self).
#[derive(Default)]
pub struct Sim {
    handles: BTreeMap<TensorId, Handle>,
    buffers: BTreeMap<u64, u64>,
    compressed: BTreeMap<TensorId, (Content, u64)>,
    /// What is left in place of evicted tensors of which less than the contents is needed. Here it is the contents.
    substitutes: BTreeMap<TensorId, Content>,
    /// Bytes of all tensors that have had data.
    sizes: BTreeMap<TensorId, u64>,
    /// Recorded operations, and what they drew.
    kept: BTreeMap<OpKey, (Asked, u64)>,
    /// The current operation.
    pub asked: Option<Asked>,
    /// The current upload.
    pub upload: Option<(Content, u64)>,
    /// How much random operations have drawn, in total and last.
    pub drawn: u64,
    pub last_drawn: u64,
    next: u64,
    /// Most bytes held at once.
    pub peak: u64,
    /// The number of the command that fails, if any.
    pub fails_at: Option<u64>,
    pub commands: u64,
    /// Whether results can be compressed.
    pub compresses: bool,
    /// Whether a tensor is built from a substitute while an operation runs.
    pub builds: bool,
    /// What happened, in words.
    pub log: Vec<String>,
    pub logs: bool,
    /// Whether steps are traced.
    pub traces: bool,
    /// The last traced step, and the signatures of all.
    pub trace: Option<Trace>,
    pub signatures: Vec<u64>,
    /// The outcome of the current operation when it first ran, for a recording.
    pub went: OperationCall,
    /// The plan of all steps.
    pub plan: Option<Arc<Schedule>>,
    /// The plan of another kind of step, if it is known.
    pub other: Option<Arc<Schedule>>,
    /// Whether it is certain that `plan` comes next.
    pub sure: bool,
    /// Steps that followed the plan, and why the others left it.
    pub followed: Vec<Followed>,
    pub left: Vec<Left>,
}

impl Sim {
    pub fn bytes(&self) -> u64 {
        let mut seen: Vec<u64> = self.handles.values().map(|handle| handle.buffer).collect();
        seen.sort_unstable();
        seen.dedup();
        let buffers: u64 = seen.iter().map(|buffer| self.buffers[buffer]).sum();
        let compressed: u64 = self.compressed.values().map(|(_, bytes)| bytes).sum();
        buffers + compressed + self.substitutes.len() as u64
    }

    pub fn content(&self, id: TensorId) -> Option<Content> {
        self.handles.get(&id).map(|handle| handle.content)
    }

    /// The number of tensors with data, compressed tensors and recorded operations.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.handles.len(), self.compressed.len(), self.kept.len())
    }

    fn add(&mut self, id: TensorId, content: Content, bytes: u64) -> Buffer {
        self.next += 1;
        self.buffers.insert(self.next, bytes);
        self.sizes.insert(id, bytes);
        let handle = Handle { buffer: self.next, content };
        assert!(self.handles.insert(id, handle).is_none(), "tensor {id} already had data");
        Buffer::Known { identity: self.next, bytes }
    }

    fn owners(&self, buffer: u64) -> usize {
        self.handles.values().filter(|handle| handle.buffer == buffer).count()
    }

    fn fails(&mut self) -> Result<(), Failure> {
        self.commands += 1;
        if self.fails_at == Some(self.commands) { Err("planted".into()) } else { Ok(()) }
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if self.logs {
            let text = text();
            self.log.push(text);
        }
    }
}

impl Driver for Sim {
    fn run(&mut self, run: &Run<'_>) -> Result<Ran, Failure> {
        let (asked, takes, drawn) = match run.source {
            Source::AtHand { only_read } => {
                let asked = self.asked.take().expect("there is a current operation");
                self.drawn += 1;
                let drawn = run.seed.map_or(self.drawn, hash);
                self.last_drawn = drawn;
                let takes = asked.last.iter().copied().filter(|id| !only_read.contains(id)).collect();
                (asked, takes, drawn)
            }
            Source::Kept { op, takes, .. } => {
                let (asked, drawn) = self.kept[&op].clone();
                let drawn = run.seed.map_or(drawn, hash);
                (asked, takes.to_vec(), drawn)
            }
        };
        if let Err(failure) = self.fails() {
            for id in takes {
                self.handles.remove(&id);
            }
            if matches!(run.source, Source::AtHand { .. }) {
                self.went = OperationCall { failure: Some(failure.to_string()), ..OperationCall::default() };
            }
            return Err(failure);
        }
        let spared = run.substitute.map(|(id, _)| id);
        let content = |id: &TensorId| match spared == Some(*id) {
            true => self.substitutes[id],
            false => self.handles[id].content,
        };
        let contents: Vec<Content> = asked.inputs.iter().map(content).collect();
        let inputs: Vec<Handle> = asked.inputs.iter().filter_map(|id| self.handles.get(id).copied()).collect();
        let built = spared.filter(|_| self.builds).map_or(0, |id| self.sizes[&id]);
        let mut ran = Ran { ns: 10 + asked.kind % 7, beside: built, ..Ran::default() };
        let mut went = OperationCall { ns: ran.ns, substitute: self.went.substitute, ..OperationCall::default() };
        let mut free: Vec<u64> = takes.iter().filter_map(|id| Some(self.handles.get(id)?.buffer)).collect();
        free.retain(|&buffer| self.owners(buffer) == 1);
        // The input that it overwrites, if any.
        let over = asked.inputs.iter().position(|id| asked.last.contains(id));
        let over = over.and_then(|at| Some((at, self.handles.get(&asked.inputs[at])?.buffer)));
        for (k, (&id, &(_, bytes))) in run.outputs.iter().zip(&asked.outputs).enumerate() {
            let content = asked.content(k, &contents, drawn);
            let reused = match asked.works {
                Works::View => inputs.first().map(|handle| handle.buffer),
                Works::InPlace => {
                    let over = over.filter(|&(_, buffer)| self.buffers[&buffer] == bytes);
                    over.and_then(|(_, buffer)| free.iter().position(|&known| known == buffer))
                        .map(|at| free.remove(at))
                }
                _ => None,
            };
            let buffer = match reused {
                Some(buffer) => {
                    self.handles.insert(id, Handle { buffer, content });
                    Buffer::Known { identity: buffer, bytes: self.buffers[&buffer] }
                }
                None => self.add(id, content, bytes),
            };
            went.made.push(match (asked.works, over) {
                (Works::View, _) => Made::View(0),
                // Whether it may do so now or not.
                (Works::InPlace, Some((at, buffer))) if self.buffers[&buffer] == bytes => Made::Over(at, bytes),
                _ => Made::New(bytes),
            });
            let packs = run.compressible && self.compresses && asked.works == Works::Random;
            let packs = packs.then_some(Compressible { alternative: Alternative::MaskBits, bytes: 1, cost_ns: 1 });
            went.compressible.push(packs);
            ran.buffers.push((buffer, packs));
        }
        if matches!(run.source, Source::AtHand { .. }) {
            self.went = went;
        }
        self.peak = self.peak.max(self.bytes() + built);
        for id in takes {
            self.handles.remove(&id);
        }
        if run.keep {
            let key = (0..).find(|key| !self.kept.contains_key(key)).unwrap();
            self.kept.insert(key, (asked, drawn));
            ran.kept = Some(key);
        }
        Ok(ran)
    }

    fn arrive(&mut self, id: TensorId) -> Result<Buffer, Failure> {
        self.fails()?;
        let (content, bytes) = self.upload.take().expect("there is a current upload");
        let buffer = self.add(id, content, bytes);
        self.peak = self.peak.max(self.bytes());
        Ok(buffer)
    }

    fn alias(&mut self, new: TensorId, source: TensorId) -> Buffer {
        let handle = self.handles[&source];
        self.handles.insert(new, handle);
        Buffer::Known { identity: handle.buffer, bytes: self.buffers[&handle.buffer] }
    }

    fn free(&mut self, id: TensorId) {
        self.handles.remove(&id);
    }

    fn forget(&mut self, op: OpKey) {
        assert!(self.kept.remove(&op).is_some(), "operation {op} had already been forgotten");
    }

    fn output(&mut self, op: OpKey, k: usize) -> TensorFacts {
        let (id, bytes) = self.kept[&op].0.outputs[k];
        TensorFacts { id, shape: bytes, bytes, buffer_bytes: bytes }
    }

    fn compress(&mut self, id: TensorId) -> Option<(u64, u64)> {
        self.fails().ok()?;
        self.compressed.insert(id, (self.handles[&id].content, 1));
        self.peak = self.peak.max(self.bytes());
        Some((1, 1))
    }

    fn decompress(&mut self, id: TensorId) -> Result<(Buffer, u64), Failure> {
        self.fails()?;
        let (content, _) = self.compressed[&id];
        let bytes = self.sizes[&id];
        let buffer = self.add(id, content, bytes);
        self.peak = self.peak.max(self.bytes());
        Ok((buffer, 1))
    }

    fn discard(&mut self, id: TensorId) {
        assert!(self.compressed.remove(&id).is_some(), "tensor {id} was not compressed");
    }

    fn substitute(&mut self, _id: TensorId, need: Need) -> Option<Substitute> {
        self.went.substitute = Some(Substitute { need, bytes: 1, stand_in: 0, cost_ns: 0 });
        self.went.substitute
    }

    fn leave_substitute(&mut self, id: TensorId, _need: Need) -> Option<(u64, u64)> {
        self.substitutes.insert(id, self.handles[&id].content);
        self.peak = self.peak.max(self.bytes());
        Some((1, 1))
    }

    fn drop_substitute(&mut self, id: TensorId) {
        assert!(self.substitutes.remove(&id).is_some(), "tensor {id} has left no substitute");
    }

    fn name(&self, kind: Kind) -> String {
        format!("op{kind}")
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Runs(kind) => self.say(|| format!("run op{kind}")),
            Event::Recomputes(kind) => self.say(|| format!("recompute op{kind}")),
            Event::Evicts(kind) => self.say(|| format!("evict op{kind}")),
            Event::Compresses(kind) => self.say(|| format!("compress op{kind}")),
            Event::StepEnds => self.say(|| "step ends".to_owned()),
            Event::BelowFloor { budget, floor, kind } => {
                self.say(|| format!("op{kind} needs {floor} of {budget}"));
            }
            Event::Budget { first_step, budget } => self.say(|| format!("first step {first_step}, budget {budget}")),
            Event::GaveUp => self.say(|| "gave up".to_owned()),
            Event::Failed(failure) => self.say(|| format!("failed: {failure}")),
            Event::Deviates { at, live, foreseen } => self.say(|| format!("after {at}: {live}, predicted {foreseen}")),
        }
    }
}

impl Planning for Sim {
    fn is_on(&self) -> bool {
        self.traces || self.plan.is_some()
    }

    fn is_settled(&self) -> bool {
        !self.traces
    }

    fn observe(&mut self, trace: Trace, _structure: u64, _limits: Limits) -> bool {
        reads_back(&trace);
        reads_back(&trace.clone().planned_part());
        self.signatures.push(trace.signature());
        self.trace = Some(trace);
        false
    }

    fn next(&self) -> Option<Arc<Schedule>> {
        self.plan.clone()
    }

    fn is_sure(&self) -> bool {
        self.sure
    }

    fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Schedule>> {
        self.other.clone().filter(|other| other.prefixes.get(count) == Some(&prefix))
    }

    fn like(&self, done: &[TracedOp], kind: Kind, _bytes: u64) -> Option<Arc<Schedule>> {
        let plan = self.plan.clone()?;
        let kinds: Vec<Kind> = done.iter().map(|op| op.kind).chain([kind]).collect();
        plan.trace.ops.iter().map(|op| op.kind).take(kinds.len()).eq(kinds).then_some(plan)
    }

    fn followed(&mut self, _schedule: &Schedule, outcome: Followed, _limits: Limits) -> bool {
        self.followed.push(outcome);
        false
    }

    fn left(&mut self, why: Left) {
        self.left.push(why);
    }
}

impl World for Sim {
    type Planning = Self;

    fn planning(&self) -> &Self {
        self
    }

    fn planning_mut(&mut self) -> &mut Self {
        self
    }
}

/// A program on a machine, together with its plain interpretation.
pub struct Program {
    pub machine: Machine<Sim>,
    /// The contents that the program's tensors should have.
    pub expected: BTreeMap<TensorId, Content>,
    pub bytes: BTreeMap<TensorId, u64>,
    next: TensorId,
    drawn: u64,
    /// Whether tensors may hold no data because something has failed.
    pub any_failed: bool,
    /// What it has requested so far.
    pub asked: Vec<Asking>,
}

impl Program {
    pub fn new(config: Config) -> Self {
        Self {
            machine: Machine::new(config, Sim::default()),
            expected: BTreeMap::new(),
            bytes: BTreeMap::new(),
            next: 0,
            drawn: 0,
            any_failed: false,
            asked: Vec::new(),
        }
    }

    fn fresh(&mut self, bytes: u64) -> TensorId {
        self.next += 1;
        self.bytes.insert(self.next, bytes);
        self.next
    }

    pub fn upload(&mut self, thread: u64, bytes: u64) -> TensorId {
        let id = self.fresh(bytes);
        let content = hash(("upload", id));
        self.machine.world_mut().upload = Some((content, bytes));
        let tensor = TensorFacts { id, shape: bytes, bytes, buffer_bytes: bytes };
        self.machine.upload(thread, tensor);
        self.asked.push(Asking::Upload { thread, tensor, made: Made::New(bytes) });
        self.expected.insert(id, content);
        self.check();
        id
    }

    /// Runs an operation; `last` are those of its inputs that the program releases.
    pub fn run(
        &mut self,
        thread: u64,
        kind: Kind,
        works: Works,
        inputs: &[TensorId],
        last: &[TensorId],
        outputs: &[u64],
    ) -> Vec<TensorId> {
        self.run_weakly(thread, kind, works, (inputs, None), last, outputs)
    }

    /// Runs an operation that may need less than the contents of one of its inputs.
    pub fn run_weakly(
        &mut self,
        thread: u64,
        kind: Kind,
        works: Works,
        (inputs, weak): (&[TensorId], Option<TensorId>),
        last: &[TensorId],
        outputs: &[u64],
    ) -> Vec<TensorId> {
        let outputs: Vec<(TensorId, u64)> = outputs.iter().map(|&bytes| (self.fresh(bytes), bytes)).collect();
        let asked = Asked { kind, works, inputs: inputs.to_vec(), weak, last: last.to_vec(), outputs: outputs.clone() };
        let contents: Vec<Content> = inputs.iter().map(|id| self.expected[id]).collect();
        let operation = asked.operation();
        let world = self.machine.world_mut();
        world.asked = Some(asked.clone());
        let before = world.drawn;
        self.machine.operation(thread, &operation);
        let world = self.machine.world_mut();
        let Operation { kind, inputs: asked_inputs, outputs: made, nature, weak, .. } = operation;
        self.asked.push(Asking::Operation(OperationCall {
            thread,
            kind,
            name: Some(format!("op{kind}")),
            inputs: asked_inputs.into_vec(),
            outputs: made.into_vec(),
            nature,
            weak,
            ..std::mem::take(&mut world.went)
        }));
        self.drawn = world.last_drawn;
        self.any_failed |= world.drawn == before;
        for (k, &(id, _)) in outputs.iter().enumerate() {
            self.expected.insert(id, asked.content(k, &contents, self.drawn));
        }
        for id in last {
            self.expected.remove(id);
        }
        self.check();
        outputs.into_iter().map(|(id, _)| id).collect()
    }

    pub fn mark(&mut self, thread: u64) {
        self.machine.mark(thread);
        self.asked.push(Asking::Mark { thread });
    }

    pub fn drop_tensor(&mut self, thread: u64, id: TensorId) {
        self.machine.dropped(thread, id);
        self.asked.push(Asking::Drop { thread, tensor: id });
        self.expected.remove(&id);
        self.check();
    }

    pub fn read(&mut self, thread: u64, id: TensorId) {
        let expected = self.expected[&id];
        self.asked.push(Asking::Read { thread, tensor: id, last: false });
        let read = self.machine.read(thread, id, false, |machine| Ok(machine.world().content(id)));
        match read {
            Ok(content) => assert_eq!(content, Some(expected), "tensor {id} has other contents"),
            Err(failure) => assert!(self.any_failed || &*failure == "planted", "{failure}"),
        }
        self.check();
    }

    /// Checks that machine and observer count the same.
    pub fn check(&self) {
        assert_eq!(self.machine.holdings().bytes, self.machine.world().bytes());
        assert!(self.machine.holdings().fixed <= self.machine.holdings().bytes);
    }
}

/// The trace of a step on a parameter of this many bytes.
pub fn trace_of(bytes: u64, step: impl Fn(&mut Program, u64)) -> Arc<Trace> {
    let mut program =
        Program::new(Config { budget: burn_remat_core::Asked::Bytes(1 << 30), rehearsing: true, ..Config::default() });
    program.machine.world_mut().traces = true;
    let parameter = program.upload(1, bytes);
    (0..3).for_each(|_| step(&mut program, parameter));
    program.machine.mark(1);
    Arc::new(program.machine.world_mut().trace.take().expect("the step was traced"))
}

/// Checks that a step can be written and read back unchanged.
fn reads_back(trace: &Trace) {
    let read: Trace = serde_json::from_str(&serde_json::to_string(trace).unwrap()).unwrap();
    assert_eq!(read.read_back().as_ref(), Ok(trace));
}
