//! What Burn's `Learner` needs of a model and its data, for `text-classification` and `several-machines`.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::tensor::{Device, Int, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use burn_remat::RematExt;

use crate::data::{Passage, Passages};
use crate::models::TextClassifier;
use crate::tasks::SEED;

/// Makes batches of passages.
#[derive(Clone, Debug)]
pub struct PassageBatcher;

/// Passages `[batch, PASSAGE_LENGTH]` and labels `[batch]`.
type PassageBatch = (Tensor<2, Int>, Tensor<1, Int>);

/// Batches of `passages`, in a different order in each epoch.
pub fn loader(passages: Vec<Passage>, batch_size: usize) -> Arc<dyn DataLoader<PassageBatch>> {
    DataLoaderBuilder::new(PassageBatcher).batch_size(batch_size).shuffle(SEED).build(InMemDataset::new(passages))
}

impl Batcher<Passage, PassageBatch> for PassageBatcher {
    fn batch(&self, items: Vec<Passage>, device: &Device) -> PassageBatch {
        Passages::tensors(&items, device)
    }
}

impl TextClassifier {
    fn output(&self, (passages, labels): PassageBatch) -> ClassificationOutput {
        let logits = self.forward(passages);
        let loss = crate::models::cross_entropy(logits.clone(), labels.clone());
        ClassificationOutput::new(loss, logits, labels)
    }
}

impl TrainStep for TextClassifier {
    type Input = PassageBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: PassageBatch) -> TrainOutput<ClassificationOutput> {
        // The `Learner` also computes metrics on the device, in a thread of its own, so it is hard to see where steps begin.
        batch.0.device().remat_mark_step();
        let output = self.output(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for TextClassifier {
    type Input = PassageBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: PassageBatch) -> ClassificationOutput {
        self.output(batch)
    }
}
