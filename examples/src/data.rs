//! Small real data: the digits that the repository ships, a folder of images, or a text.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;

/// Side of every image in pixels.
pub const SIDE: usize = 32;
const DIGITS: &[u8] = include_bytes!("../data/digits.csv.gz");
/// The repository's own documents: a text that is always at hand.
const DOCUMENTS: &str = concat!(include_str!("../../README.md"), include_str!("../../burn-remat/ARCHITECTURE.md"));

/// Gray images with labels, in host memory.
pub struct Images {
    /// `[image][SIDE * SIDE]`, 0 to 1.
    pixels: Vec<Vec<f32>>,
    labels: Vec<i32>,
    classes: usize,
}

impl Images {
    /// The digits that the repository ships, scaled from 8 x 8 to 32 x 32 pixels.
    ///
    /// # Errors
    ///
    /// A data file that is not what it should be.
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

    /// All PNG and JPEG files of `folder`, which has one folder per class; scaled to 32 x 32 gray pixels.
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
                let image = image::open(&file).map_err(|error| format!("{}: {error}", file.display()))?;
                let side = SIDE as u32;
                let gray = image.resize_exact(side, side, image::imageops::FilterType::Triangle).to_luma32f();
                images.pixels.push(gray.into_raw());
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

    /// How many labels there are.
    pub fn classes(&self) -> usize {
        self.classes
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
