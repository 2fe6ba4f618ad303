//! A recurrent network, unrolled.

use super::net::{Net, Node, Shape};

/// A language model with one LSTM layer (Hochreiter & Schmidhuber 1997; sizes from Zaremba et al. 2014), unrolled over
/// `steps` tokens: an embedding, four gates, a prediction and a loss for each.
///
/// All steps share their weights. Only the first step's layers have parameters, because their backward ops come last.
pub fn lstm(batch: u64, steps: usize) -> Net {
    const WIDTH: u64 = 650;
    const VOCABULARY: u64 = 10_000;
    let state = Shape { channels: WIDTH, height: 1, width: 1 };
    let mut net = Net::new("lstm", batch, Shape { channels: 1, height: steps as u64, width: 1 });
    let (mut hidden, mut cell) = (net.input("hidden", state), net.input("cell", state));
    let mut losses = Vec::with_capacity(steps);
    for step in 0..steps {
        let name = format!("step{step}");
        net.stage(name.clone());
        let first = net.layers.len();
        let token = net.select(&format!("{name}.token"), 0, Shape { channels: 1, height: 1, width: 1 });
        net.layers[token].needs_gradient = false;
        let x = net.embedding(&format!("{name}.embedding"), token, VOCABULARY, WIDTH, 0);
        let gate = |net: &mut Net, part: &str| {
            let a = net.linear(&format!("{name}.{part}.input"), x, WIDTH);
            let b = net.linear_no_bias(&format!("{name}.{part}.hidden"), hidden, WIDTH);
            let sum = net.add(&format!("{name}.{part}.add"), a, b);
            net.squash(&format!("{name}.{part}"), sum)
        };
        let gates: [Node; 4] = ["in", "forget", "out", "new"].map(|part| gate(&mut net, part));
        let [taken, kept, shown, new] = gates;
        let kept = net.product(&format!("{name}.kept"), kept, cell);
        let taken = net.product(&format!("{name}.taken"), taken, new);
        cell = net.add(&format!("{name}.cell"), kept, taken);
        let squashed = net.squash(&format!("{name}.cell.tanh"), cell);
        hidden = net.product(&format!("{name}.hidden"), shown, squashed);
        let scores = net.linear(&format!("{name}.head"), hidden, VOCABULARY);
        losses.push(net.cross_entropy(&format!("{name}.loss"), scores));
        if step > 0 {
            net.layers[first..].iter_mut().for_each(|layer| layer.parameters = 0);
        }
    }
    net.total(&losses);
    net
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_share_their_weights() {
        let cell = 4 * (650 * 650 + 650 * 650 + 650);
        for steps in [1, 7] {
            assert_eq!(lstm(1, steps).parameters(), 10_000 * 650 + cell + 10_000 * 650 + 10_000);
        }
    }
}
