//! Vision towers, and texts with images, against the oracle: no divergence where there is no fault,
//! and the right tensor where a fault was injected.

mod planted;

use std::f64::consts::TAU;
use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Writer};
use octavo_analysis::diff::{
    BackendExecution, Comparison, Error, Execution, Fault, IMAGE_EMBEDDINGS, ImageInput, Images,
    Input, OracleExecution, PIXELS, Rounding, TapOut, TapOutSink, Target, Text, TowerBackend,
    Verdict, compare,
};
use octavo_engine::backend::cpu;
use octavo_engine::{EngineOptions, ImageHandle, ImageRegistry};
use octavo_fixtures::shared;
use octavo_fixtures::towers::PAIRS;
use octavo_kernels::{Isa, IsaChoice, KvType};
use octavo_model::taps::Numbering;
use octavo_model::{Hparams, Model, OwnedTap};
use octavo_reference::{ImageRows, Oracle, Piece, Position};
use octavo_text::tokenizer::Tokenizer;
use octavo_vision::pixels::{DecodedImage, Limits, Prepared, TokenLimits, decode};
use octavo_vision::tower::Layout;
use octavo_vision::{Encoder, Tower, prompt};

const PROMPT: &str = "What is in <__media__> and in <__media__>? It is";
const NAMES: [&str; 3] = ["photo", "tall", "wide"];

fn open(path: &Path) -> Arc<Gguf> {
    Arc::new(Gguf::open(path, &OpenOptions::default()).expect("a file"))
}

fn image(name: &str) -> Option<DecodedImage> {
    let bytes = std::fs::read(shared(&format!("vision/images/{name}.png"))?).expect("a file");
    Some(decode(&bytes, &Limits::default()).expect("an image"))
}

/// Largest number of image tokens per image.
const MAX_IMAGE_TOKENS: usize = 256;

fn options(isa: Isa) -> EngineOptions {
    EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(2),
        ..EngineOptions::default()
    }
}

fn tower(gguf: &Arc<Gguf>, isa: Isa) -> TowerBackend {
    TowerBackend::load(gguf.clone(), &options(isa), MAX_IMAGE_TOKENS, &mut |_| {})
        .expect("it is prepared")
}

fn seen(image: &DecodedImage) -> Input<'_> {
    Input::Image(ImageInput {
        image,
        token_limits: TokenLimits::default(),
    })
}

fn run(a: &mut dyn Execution, b: &mut dyn Execution, input: Input<'_>) -> Comparison {
    compare(a, b, input, &mut |_, _| {}).expect("both run")
}

fn assert_within(what: &str, c: &Comparison) {
    let parts = c.taps.iter().filter_map(|tap| tap.of_bound);
    let worst = parts.fold(0.0, f64::max);
    println!("{what}: {worst:.3} of the bound, {} tensors", c.taps.len());
    assert_eq!(
        c.verdict,
        Verdict::Within,
        "{what}: {:?}",
        c.first_divergence
    );
}

/// A tower of each kind.
const TOWERS: [&str; 8] = [
    "vision/vl-a-mmproj-F32",
    "vision/q25/vl-q25-mmproj-F32",
    "vision2/gemma3/gemma3-a-mmproj-F32",
    "vision2/gemma4/gemma4-a-mmproj-F32",
    "vision2/gemma4u/gemma4u-a-mmproj-F32",
    "vision2/pixtral/pixtral-a-mmproj-F32",
    "vision2/idefics3/idefics3-a-mmproj-F32",
    "vision2/internvl/internvl-a-mmproj-F32",
];

#[test]
fn towers_are_within_their_bounds_of_the_oracle() {
    let recorded = ["vision/vl-a-mmproj-F16"].into_iter().chain(TOWERS);
    let recorded = recorded.map(|file| Some((file, open(&shared(&format!("{file}.gguf"))?))));
    let made = PAIRS.iter().map(|pair| {
        let bytes = pair.tower(TensorType::F32);
        let gguf = Gguf::from_bytes(bytes, pair.name, &OpenOptions::default());
        Some((pair.name, Arc::new(gguf.expect("a file"))))
    });
    for found in recorded.chain(made) {
        let Some((file, gguf)) = found else { return };
        for name in NAMES {
            let Some(image) = image(name) else { return };
            for isa in Isa::available() {
                let mut oracle = OracleExecution::new(gguf.clone()).expect("a tower");
                let c = run(&mut oracle, &mut tower(&gguf, isa), seen(&image));
                assert_within(&format!("{file} {name} {isa}"), &c);
                assert!(c.absent.is_empty(), "{file} {name}: {:?}", c.absent);
                assert_eq!(c.taps[0].name, PIXELS);
                assert_eq!(c.taps[0].nmse, 0.0, "pixels are equal to the bit");
                assert_eq!(c.taps[c.taps.len() - 1].name, IMAGE_EMBEDDINGS);
            }
        }
    }
}

/// A text model, its prompt, and the images in it.
struct Asked {
    gguf: Arc<Gguf>,
    images: ImageRegistry,
    _shown: Vec<ImageHandle>,
    tokens: Vec<u32>,
}

impl Asked {
    fn new(text: &str, mmproj: &str) -> Option<Asked> {
        let gguf = open(&shared(&format!("vision/{text}.gguf"))?);
        let tower = open(&shared(&format!("vision/{mmproj}.gguf"))?);
        let mut encoder =
            Encoder::load(&tower, &options(Isa::best()), MAX_IMAGE_TOKENS, &mut |_| {})
                .expect("a tower");
        let hparams = Hparams::from_gguf(&gguf).expect("a model");
        let images = ImageRegistry::new(&hparams);
        let mut show = |name: &&str| {
            let h = &encoder.tower().hparams;
            let prepared = Prepared::new(&image(name)?, h, TokenLimits::default());
            let prepared = prepared.expect("a usual image");
            let image = encoder.image(&prepared, [name.as_bytes()[0]; 32]);
            Some(
                images
                    .register(image.expect("it runs"))
                    .expect("ids are left"),
            )
        };
        let shown: Vec<ImageHandle> = NAMES[..2].iter().map(&mut show).collect::<Option<_>>()?;
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a vocabulary");
        let tokens = prompt::tokens(&tokenizer, PROMPT.as_bytes(), prompt::MARKER, &shown);
        Some(Asked {
            tokens: tokens.expect("as many markers"),
            gguf,
            images,
            _shown: shown,
        })
    }

    fn usual() -> Option<Asked> {
        Asked::new("vl-a-text-F32", "vl-a-mmproj-F32")
    }

    fn input(&self) -> Input<'_> {
        Input::Text(Text {
            tokens: &self.tokens,
            images: &self.images,
        })
    }

    fn backend(&self, isa: Isa) -> BackendExecution {
        let options = cpu::Options {
            isa,
            threads: 2,
            pool: None,
            kv_type: KvType::F32.both(),
            n_pages: 16,
            n_states: 0,
            prompt_bits: octavo_kernels::PromptBits::default(),
            repack: true,
            lock: false,
            weights: None,
            adapters: Vec::new(),
        };
        let model = Model::load(&self.gguf).expect("a model");
        BackendExecution::cpu(self.gguf.clone(), model, &options, &mut |_, _| {})
            .expect("it is prepared")
    }

    /// Returns the start position of the first image, and its number of image tokens.
    fn first_image(&self) -> [usize; 2] {
        let begins = self
            .tokens
            .iter()
            .position(|id| octavo_engine::is_image_token(*id));
        let begins = begins.expect("an image");
        let shown = self.images.image_of(self.tokens[begins]);
        [begins, shown.expect("it is held").image().n_tokens()]
    }

    /// Returns name and position of the first difference between the engine and `other`.
    fn address(&self, other: &mut dyn Execution) -> (String, usize, usize) {
        first(run(&mut self.backend(Isa::best()), other, self.input()))
    }
}

fn first(c: Comparison) -> (String, usize, usize) {
    assert_eq!(c.verdict, Verdict::Diverged);
    let first = c.first_divergence.expect("a tensor");
    println!(
        "{} #{}: {:?} times its bound",
        first.name, first.occurrence, first.of_bound
    );
    (first.name, first.occurrence, first.position)
}

#[test]
fn texts_with_images_are_within_their_bounds_of_the_oracle() {
    for (text, mmproj) in [
        ("vl-a-text-F32", "vl-a-mmproj-F32"),
        ("vl-a-text-Q4_K_M", "vl-a-mmproj-F16"),
        ("q25/vl-q25-text-F16", "q25/vl-q25-mmproj-F32"),
    ] {
        let Some(asked) = Asked::new(text, mmproj) else {
            return;
        };
        for isa in Isa::available() {
            let mut oracle = OracleExecution::new(asked.gguf.clone()).expect("a model");
            let c = run(&mut oracle, &mut asked.backend(isa), asked.input());
            assert_within(&format!("{text} {isa}"), &c);
            assert!(c.logits.is_some_and(|c| c.top1 == 1.0), "{text} {isa}");
        }
    }
}

#[test]
fn a_text_is_no_image() {
    let Some(asked) = Asked::usual() else { return };
    let Some(path) = shared("vision/vl-a-mmproj-F32.gguf") else {
        return;
    };
    let (gguf, tokens) = (open(&path), [5u32, 7]);
    let mut a = tower(&gguf, Isa::best());
    let mut b = OracleExecution::new(gguf.clone()).expect("a tower");
    let text = Input::from(&tokens[..]);
    let error = compare(&mut a, &mut b, text, &mut |_, _| {}).expect_err("a text");
    assert!(
        error.to_string().ends_with(": expected an image"),
        "{error}"
    );
    let c = compare(
        &mut a,
        &mut asked.backend(Isa::best()),
        text,
        &mut |_, _| {},
    );
    let error = c.expect_err("a tower and a model").to_string();
    assert!(error.contains("in the first"), "{error}");
}
