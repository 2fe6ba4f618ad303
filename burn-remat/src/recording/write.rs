//! Records what a program asks for: in a file, line by line, or in memory for a machine of this process that replays it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use burn_remat_core::{
    Asking, Buffer, Config, Input, Kind, LayoutFollows, Made, Operation, OperationCall, Ran, Recording, Run, Source,
    Substitute, TensorFacts, TensorId, ThreadId,
};
use burn_remat_plan::Graph;
use burn_remat_plan::format::RECORDING_FORMAT;
use rustc_hash::FxHashSet;
use serde::Serialize;

use super::{Header, Layout};
use crate::budget::Budget;
use crate::error::RematError;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Writer {
    file: Option<BufWriter<File>>,
    /// The requests so far, if this process replays them.
    kept: Option<Vec<Asking>>,
    /// The current operation.
    call: Option<OperationCall>,
    /// The buffer of the tensor that arrived last.
    arrived: Option<Buffer>,
    /// Kinds of operations whose names have been written.
    named: FxHashSet<Kind>,
    /// The first error. Nothing is written after it.
    error: Option<io::Error>,
}

impl Writer {
    /// A writer that keeps requests in memory.
    pub fn keeping() -> Self {
        Self { kept: Some(Vec::new()), ..Self::default() }
    }

    /// The requests that were kept.
    ///
    /// # Errors
    ///
    /// [`RematError::Unfollowed`] if one of them cannot be replayed.
    pub fn kept(&mut self) -> Result<Recording, RematError> {
        let kept = self.kept.take().unwrap_or_default();
        Recording::of(kept).map_err(|(at, misfit)| RematError::Unfollowed { reason: format!("call {at}: {misfit}") })
    }

    /// Whether requests are kept.
    pub fn keeps(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether a file is written.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Begins a file for the device with this name.
    pub fn begin_file(&mut self, path: &Path, device: &str, budget: Budget, config: &Config) -> io::Result<()> {
        self.file = Some(BufWriter::new(File::create(path)?));
        self.line(&Header {
            format: RECORDING_FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: device.to_owned(),
            budget: match budget {
                // `Display` would round it.
                Budget::Bytes(bytes) => bytes.to_string(),
                budget => budget.to_string(),
            },
            reseed: config.reseed,
            strict: config.strict,
            recompute_limit: Some(config.recompute_limit).filter(|limit| limit.is_finite()),
            count_workspaces: config.count_workspaces,
            layout: match config.layout {
                LayoutFollows::Nothing => Layout::Nothing,
                LayoutFollows::Parts => Layout::Parts,
                LayoutFollows::Reuse => Layout::Reuse,
            },
        });
        self.error.take().map_or(Ok(()), Err)
    }

    fn line(&mut self, of: &impl Serialize) {
        let Some(file) = self.file.as_mut().filter(|_| self.error.is_none()) else { return };
        let written = serde_json::to_writer(&mut *file, of).map_err(io::Error::from);
        self.error = written.and_then(|()| file.write_all(b"\n")).err();
        if let Some(error) = &self.error {
            log::error!("the recording ends here: {error}");
        }
    }

    /// Records a request.
    pub fn ask(&mut self, asking: Asking) {
        self.line(&asking);
        if let Some(kept) = &mut self.kept {
            kept.push(asking);
        }
    }

    /// Begins an operation.
    pub fn begin(&mut self, thread: ThreadId, op: &Operation, name: impl FnOnce() -> String) {
        self.call = Some(OperationCall {
            thread,
            kind: op.kind,
            name: self.named.insert(op.kind).then(name),
            inputs: op.inputs.to_vec(),
            outputs: op.outputs.to_vec(),
            nature: op.nature,
            weak: op.weak,
            ..OperationCall::default()
        });
    }

    /// Ends and records the current operation.
    pub fn end(&mut self) {
        let Some(mut call) = self.call.take() else { return };
        if call.made.len() != call.outputs.len() && call.failure.is_none() {
            call.failure = Some("it did not run".to_owned());
        }
        self.ask(Asking::Operation(call));
    }

    /// Records a tensor that comes from elsewhere.
    pub fn upload(&mut self, thread: ThreadId, tensor: TensorFacts) {
        let made = match self.arrived.take() {
            Some(Buffer::Known { bytes, .. }) => Made::New(bytes),
            Some(Buffer::Unknown) => Made::Unknown,
            None => Made::New(tensor.buffer_bytes),
        };
        self.ask(Asking::Upload { thread, tensor, made });
    }

    /// Sets the buffer of a tensor that comes from elsewhere.
    pub fn arrives(&mut self, buffer: Buffer) {
        self.arrived = Some(buffer);
    }

    /// The inputs of the current operation, if `run` is for that one.
    pub fn inputs(&self, run: &Run<'_>) -> Option<&[Input]> {
        self.call.as_ref().filter(|_| matches!(run.source, Source::AtHand { .. })).map(|call| &call.inputs[..])
    }

    /// Bytes that the current operation says it will need.
    pub fn needs(&mut self, run: &Run<'_>, bytes: u64) {
        if let (Some(call), Source::AtHand { .. }) = (&mut self.call, run.source) {
            call.needs = bytes;
        }
    }

    /// How its inputs are laid out.
    pub fn arrangement(&mut self, arrangement: u64) {
        if let Some(call) = &mut self.call {
            call.arrangement = arrangement;
        }
    }

    /// What could replace an input that it needs only in part.
    pub fn substitute(&mut self, substitute: Option<Substitute>) {
        if let Some(call) = &mut self.call {
            call.substitute = substitute;
        }
    }

    /// The operation has run; `before` are the buffers that its inputs had.
    pub fn ran(&mut self, run: &Run<'_>, before: &[Option<Buffer>], ran: Result<&Ran, &str>) {
        let Some(call) = &mut self.call else { return };
        let ran = match ran {
            Ok(ran) => ran,
            Err(failure) => {
                call.failure = Some(failure.to_owned());
                return;
            }
        };
        let only_read: &[TensorId] = match run.source {
            Source::AtHand { only_read } => only_read,
            Source::Kept { .. } => return,
        };
        (call.ns, call.rise, call.beside) = (ran.ns, ran.rise, ran.beside);
        call.left = ran.left.to_vec();
        let takes = |input: &Input| input.last && !only_read.contains(&input.id) && !ran.left.contains(&input.id);
        for (k, (buffer, _)) in ran.buffers.iter().enumerate() {
            let Buffer::Known { identity, bytes } = *buffer else {
                call.made.push(Made::Unknown);
                continue;
            };
            let is_same = |other: &Buffer| matches!(other, Buffer::Known { identity: known, .. } if *known == identity);
            let of = |(at, _): &(usize, &Input)| before[*at].as_ref().is_some_and(is_same);
            let taken = call.inputs.iter().enumerate().find(|input| of(input) && takes(input.1));
            let read = call.inputs.iter().enumerate().find(of);
            let sibling = ran.buffers[..k].iter().position(|(other, _)| is_same(other));
            call.made.push(match (sibling, taken, read) {
                (Some(sibling), _, _) => Made::With(sibling),
                (None, Some((at, _)), _) if !call.nature.view => Made::Over(at, bytes),
                (None, _, Some((at, _))) => Made::View(at),
                (None, _, None) => Made::New(bytes),
            });
        }
        if ran.buffers.iter().any(|(_, form)| form.is_some()) {
            call.compressible = ran.buffers.iter().map(|(_, form)| *form).collect();
        }
    }

    /// Ends the file, with the graph that was planned.
    pub fn finish_file(&mut self, graph: Option<&Graph>) -> io::Result<()> {
        if let Some(graph) = graph {
            let graph: serde_json::Value = serde_json::from_str(&graph.to_json())?;
            self.line(&serde_json::json!({ "graph": graph }));
        }
        let file = self.file.take();
        match (self.error.take(), file) {
            (Some(error), _) => Err(error),
            (None, file) => file.map_or(Ok(()), |mut file| file.flush()),
        }
    }
}
