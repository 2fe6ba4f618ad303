//! Small real data sets: the digits that the repository ships, MNIST, a folder of images, or a text.

mod idx;

pub use idx::MnistSet;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;

/// Side of every image in pixels.
pub const SIDE: usize = 32;
/// Length of every passage of text, padding included.
pub const PASSAGE_LENGTH: usize = 128;
const DIGITS: &[u8] = include_bytes!("../data/digits.csv.gz");
/// The repository's own documents: a text that is always available.
const DOCUMENTS: &str = concat!(include_str!("../../README.md"), include_str!("../../burn-remat/ARCHITECTURE.md"));
/// Texts of three kinds: a short introduction, how it works, and measurements.
const KINDS: [&str; 3] = [
    include_str!("../../README.md"),
    include_str!("../../burn-remat/ARCHITECTURE.md"),
    include_str!("../../BENCHMARKS.md"),
];

/// Grey images with labels, in host memory.
pub struct Images {
    /// `[image][SIDE * SIDE]`, 0 to 1.
    pixels: Vec<Vec<f32>>,
    labels: Vec<i32>,
    classes: usize,
}

/// The grey pixels of an image file, scaled.
#[cfg(feature = "images")]
fn decoded(file: &Path) -> Result<Vec<f32>, String> {
    let image = image::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let side = SIDE as u32;
    Ok(image.resize_exact(side, side, image::imageops::FilterType::Triangle).to_luma32f().into_raw())
}

#[cfg(not(feature = "images"))]
fn decoded(file: &Path) -> Result<Vec<f32>, String> {
    Err(format!("{}: this build reads no image files: build with `--features images`", file.display()))
}

impl Images {
    /// The digits that the repository ships, scaled from 8 x 8 to 32 x 32 pixels.
    ///
    /// # Errors
    ///
    /// A data file with unexpected contents.
    pub fn digits() -> Result<Self, String> {
        let mut text = String::new();
        GzDecoder::new(DIGITS).read_to_string(&mut text).map_err(|error| format!("digits.csv.gz: {error}"))?;
        let mut images = Self { pixels: Vec::new(), labels: Vec::new(), classes: 10 };
        for (number, line) in text.lines().enumerate() {
            let row: Vec<f32> = line.split(',').map_while(|field| field.trim().parse().ok()).collect();
            let Ok([small @ .., label]): Result<&[f32; 65], _> = row.as_slice().try_into() else {
                return Err(format!("digits.csv.gz: line {} does not hold 65 numbers", number + 1));
            };
            let pixel = |at: usize| small[at / SIDE / 4 * 8 + at % SIDE / 4] / 16.0;
            images.pixels.push((0..SIDE * SIDE).map(pixel).collect());
            images.labels.push(*label as i32);
        }
        Ok(images)
    }

    /// All PNG and JPEG files of `folder`, which has one folder per class; scaled to 32 x 32 grey pixels.
    ///
    /// # Errors
    ///
    /// A folder or file that cannot be read, or no image at all.
    pub fn folder(folder: &Path) -> Result<Self, String> {
        let classes: Vec<PathBuf> = entries(folder)?.into_iter().filter(|path| path.is_dir()).collect();
        let mut images = Self { pixels: Vec::new(), labels: Vec::new(), classes: classes.len() };
        for (label, class) in classes.iter().enumerate() {
            for file in entries(class)? {
                let is_image = file.extension().is_some_and(|ending| {
                    ["png", "jpg", "jpeg"].iter().any(|known| ending.eq_ignore_ascii_case(known))
                });
                if !is_image {
                    continue;
                }
                images.pixels.push(decoded(&file)?);
                images.labels.push(label as i32);
            }
        }
        if images.pixels.is_empty() {
            return Err(format!(
                "{} holds no images: it needs one folder per class with PNG or JPEG files in it",
                folder.display()
            ));
        }
        Ok(images)
    }

    /// The MNIST images in `folder`: the files `train-images-idx3-ubyte` and `train-labels-idx1-ubyte` (or those that begin
    /// with `t10k` for the test set), as they are or with `.gz`. The cache of Burn's own loader also works.
    ///
    /// # Errors
    ///
    /// A file that is missing or has unexpected contents.
    pub fn mnist(folder: &Path, set: MnistSet) -> Result<Self, String> {
        let (pixels, side) = idx::images(folder, set)?;
        let labels = idx::labels(folder, set)?;
        if pixels.len() != labels.len() {
            return Err(format!("{}: {} images with {} labels", folder.display(), pixels.len(), labels.len()));
        }
        if side > SIDE {
            return Err(format!("{}: images of {side} pixels, but at most {SIDE} are supported", folder.display()));
        }
        let margin = (SIDE - side) / 2;
        let framed = |image: Vec<f32>| {
            let mut framed = vec![0.0; SIDE * SIDE];
            for (row, pixels) in image.chunks(side).enumerate() {
                let start = (row + margin) * SIDE + margin;
                framed[start..start + side].copy_from_slice(pixels);
            }
            framed
        };
        Ok(Self { pixels: pixels.into_iter().map(framed).collect(), labels, classes: 10 })
    }

    /// How many labels there are.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.pixels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.pixels.is_empty()
    }

    /// All images but the last `count`, and the last `count`.
    pub fn split(mut self, count: usize) -> (Self, Self) {
        let from = self.len().saturating_sub(count);
        let last =
            Self { pixels: self.pixels.split_off(from), labels: self.labels.split_off(from), classes: self.classes };
        (self, last)
    }

    /// Batch number `step`: images `[batch, 1, SIDE, SIDE]` and labels `[batch]`.
    pub fn batch(&self, step: usize, batch: usize, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let chosen = (0..batch).map(|at| (step * batch + at) % self.pixels.len());
        let pixels: Vec<f32> = chosen.clone().flat_map(|at| self.pixels[at].iter().copied()).collect();
        let labels: Vec<i32> = chosen.map(|at| self.labels[at]).collect();
        (
            Tensor::from_data(TensorData::new(pixels, [batch, 1, SIDE, SIDE]), device),
            Tensor::from_data(TensorData::new(labels, [batch]), device),
        )
    }
}

/// Draws the first of `images` `[batch, 1, SIDE, SIDE]` next to each other, using characters.
///
/// # Errors
///
/// What the device of the images reports.
pub fn picture(images: Tensor<4>, count: usize) -> Result<String, String> {
    const SHADES: &[u8] = b" .:+#";
    let count = count.min(images.dims()[0]);
    let data = images.narrow(0, 0, count).try_into_data().map_err(|error| error.to_string())?;
    let pixels: Vec<f32> = data.iter::<f32>().collect();
    let mut text = String::new();
    // Characters are twice as high as wide, so every other row is enough.
    for row in (0..SIDE).step_by(2) {
        for image in pixels.chunks(SIDE * SIDE) {
            text.extend(image[row * SIDE..(row + 1) * SIDE].iter().map(|&pixel| {
                let shade = (pixel.clamp(0.0, 1.0) * (SHADES.len() - 1) as f32).round();
                char::from(SHADES[shade as usize])
            }));
            text.push(' ');
        }
        text.push('\n');
    }
    Ok(text)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// A text as bytes, for a language model at character level.
pub struct Text {
    bytes: Vec<u8>,
}

impl Text {
    /// The text of a file, or the repository's own documents.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is too short for one sequence.
    pub fn open(file: Option<&Path>) -> Result<Self, String> {
        let bytes = match file {
            Some(file) => fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?,
            None => DOCUMENTS.as_bytes().to_vec(),
        };
        if bytes.len() < 1024 {
            return Err(format!("the text has only {} bytes: it needs at least 1024", bytes.len()));
        }
        Ok(Self { bytes })
    }

    /// The repository's measurements: tables, a different kind of text than its documents.
    pub fn measurements() -> Self {
        let [.., measurements] = KINDS;
        Self { bytes: measurements.as_bytes().to_vec() }
    }

    /// Batch number `step`: characters and the characters that follow them, both `[batch, length]`.
    pub fn batch(&self, step: usize, batch: usize, length: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let window = |row: usize, shift: usize| {
            let start = (step * batch + row) * length + shift;
            (start..start + length).map(|at| i32::from(self.bytes[at % self.bytes.len()]))
        };
        let tensor = |shift: usize| {
            let values: Vec<i32> = (0..batch).flat_map(|row| window(row, shift)).collect();
            Tensor::from_data(TensorData::new(values, [batch, length]), device)
        };
        (tensor(0), tensor(1))
    }
}

/// A passage of a document.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Its bytes, with zeros up to [`PASSAGE_LENGTH`].
    symbols: Vec<i32>,
    /// The document that it comes from.
    label: i32,
}

/// Passages of the repository's documents, each labelled with its document.
pub struct Passages {
    items: Vec<Passage>,
}

impl Passages {
    /// All passages, in an order in which the documents alternate.
    pub fn documents() -> Self {
        let pieces = KINDS.map(|text| {
            let bytes: Vec<i32> = text.bytes().map(i32::from).collect();
            bytes.chunks(PASSAGE_LENGTH).map(<[i32]>::to_vec).collect::<Vec<_>>()
        });
        let longest = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let turn = |number: usize| {
            pieces.iter().enumerate().map(move |(label, pieces)| {
                let mut symbols = pieces[number % pieces.len()].clone();
                symbols.resize(PASSAGE_LENGTH, 0);
                Passage { symbols, label: label as i32 }
            })
        };
        Self { items: (0..longest).flat_map(turn).collect() }
    }

    /// How many labels there are.
    pub fn classes(&self) -> usize {
        KINDS.len()
    }

    /// Passages for training, and every eighth of them for validation.
    pub fn split(self) -> (Vec<Passage>, Vec<Passage>) {
        let mut number = 0;
        self.items.into_iter().partition(|_| {
            number += 1;
            number % 8 != 0
        })
    }

    /// Batch number `step`: passages `[batch, PASSAGE_LENGTH]` and labels `[batch]`.
    pub fn batch(&self, step: usize, batch: usize, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
        let chosen = (0..batch).map(|at| self.items[(step * batch + at) % self.items.len()].clone());
        Self::tensors(&chosen.collect::<Vec<_>>(), device)
    }

    /// Passages `[batch, PASSAGE_LENGTH]` and labels `[batch]`.
    pub fn tensors(items: &[Passage], device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
        let symbols: Vec<i32> = items.iter().flat_map(|item| item.symbols.iter().copied()).collect();
        let labels: Vec<i32> = items.iter().map(|item| item.label).collect();
        (
            Tensor::from_data(TensorData::new(symbols, [items.len(), PASSAGE_LENGTH]), device),
            Tensor::from_data(TensorData::new(labels, [items.len()]), device),
        )
    }
}
