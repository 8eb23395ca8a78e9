//! Compares two executions of a text or of an image.

use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_analysis::diff::{
    BackendExecution, Comparison, Execution, ImageInput, Input, Options, OracleExecution, Text,
    TowerBackend, Verdict, compare_with,
};
use octavo_engine::backend::{cpu, cuda, split};
use octavo_engine::{DeviceChoice, EngineOptions, Loading, default_threads};
use octavo_kernels::{IsaChoice, PAGE_POSITIONS};
use octavo_model::Model;
use octavo_model::taps::FFN_MOE_TOPK;
use octavo_text::tokenizer::Tokenizer;
use octavo_vision::Tower;

use super::images::{self, Prompt};
use super::{DiffArgs, Exec, print};
use crate::args::Device;
use crate::failure::{Exit, Failure};
use crate::load::{self, shown};
use crate::output::Output;
use crate::terminal::{self, Progress};

/// Compares two files, instruction sets, devices or executors.
pub(super) fn diff(args: &DiffArgs, page: Option<&Output<'_>>) -> Result<Exit, Failure> {
    let a = open(args, args.a.as_deref())?;
    let b = match &args.b {
        Some(path) => open(args, Some(path))?,
        None => a.clone(),
    };
    let of_a = Side {
        exec: args.a_exec,
        isa: args.isa(args.a_isa),
        device: args.device(args.a_device),
    };
    let of_b = Side {
        exec: args.b_exec,
        isa: args.isa(args.b_isa),
        device: args.device(args.b_device),
    };
    if Tower::is_in(&a) {
        let image = images::only(args)?;
        let token_limits = args.image_tokens.limits()?;
        let mut pair = [tower(args, a, &of_a)?, tower(args, b, &of_b)?];
        let image = &image;
        let input = Input::Image(ImageInput {
            image,
            token_limits,
        });
        return compare(args, &mut pair, input, None, page);
    }
    if !args.image.is_empty() && args.mmproj.is_none() {
        return Err(Failure::Usage(format!(
            "{}: reads text: expected --mmproj FILE, its vision tower, beside --image",
            a.name()
        )));
    }
    let tokenizer = Tokenizer::from_gguf(&a)?;
    let prompt = Prompt::see(args, &a, of_a.isa)?;
    let tokens = prompt.tokens(args, &tokenizer)?;
    same_tokens(args, &prompt, &tokens, &b)?;
    let n = tokens.len();
    let mut pair = [execution(args, a, &of_a, n)?, execution(args, b, &of_b, n)?];
    let input = Input::Text(Text {
        tokens: &tokens,
        images: &prompt.images,
    });
    compare(args, &mut pair, input, Some(&tokenizer), page)
}

/// Compares, prints the report and writes the page.
fn compare(
    args: &DiffArgs,
    [first, second]: &mut [Box<dyn Execution>; 2],
    input: Input<'_>,
    tokenizer: Option<&Tokenizer>,
    page: Option<&Output<'_>>,
) -> Result<Exit, Failure> {
    if args.same_routing {
        routes(&**first)?;
    }
    let options = Options {
        same_routing: args.same_routing,
    };
    let bar = Progress::tensors("comparing");
    let mut progress = |done, total| bar.at(done, total);
    let comparison = compare_with(&mut **first, &mut **second, input, options, &mut progress);
    bar.clear();
    let comparison = comparison?;
    let report = print::Report {
        a: first.describe(),
        b: second.describe(),
        tokenizer,
        tokens: input.tokens(),
        comparison,
    };
    if let Some(page) = page {
        page.write(super::html::executions(&report)?.as_bytes())?;
    }
    let text = if args.json {
        report.json()?
    } else {
        report.text(args.all)
    };
    terminal::print(text.as_bytes())?;
    Ok(exit(&report.comparison))
}

fn exit(comparison: &Comparison) -> Exit {
    match comparison.verdict {
        Verdict::Identical | Verdict::Within => Exit::Done,
        Verdict::Diverged => Exit::Outside,
    }
}

fn open(args: &DiffArgs, path: Option<&Path>) -> Result<Arc<Gguf>, Failure> {
    let source = args.keys.changed(load::source_at(path)?);
    Ok(Arc::new(source.open(args.compute.mmap())?))
}

/// Refuses a second file that cuts the text into other tokens: the comparison would be of two
/// texts.
fn same_tokens(args: &DiffArgs, prompt: &Prompt, tokens: &[u32], b: &Gguf) -> Result<(), Failure> {
    let Some(path) = args.b.as_ref().filter(|_| args.text.prompt.is_some()) else {
        return Ok(());
    };
    if args.text.escape {
        return Ok(());
    }
    let theirs = prompt.tokens(args, &Tokenizer::from_gguf(b)?)?;
    if theirs == tokens {
        return Ok(());
    }
    let message = format!(
        "{}: cuts the text into {} tokens, the first model into {}: expected the same tokens \
         (--tokens gives ids)",
        path.display(),
        theirs.len(),
        tokens.len()
    );
    Err(Failure::Input(message))
}

/// Refuses --same-routing for a model without experts.
fn routes(execution: &dyn Execution) -> Result<(), Failure> {
    let mut taps = execution.target().network().graph().taps();
    if taps.any(|(tap, _)| tap.name == FFN_MOE_TOPK) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{}: chooses no experts: expected a mixture of experts for --same-routing",
        execution.gguf().name()
    )))
}

/// Executor, instruction set and device of one of the two executions.
struct Side {
    exec: Exec,
    isa: IsaChoice,
    device: Device,
}

fn tower(args: &DiffArgs, gguf: Arc<Gguf>, side: &Side) -> Result<Box<dyn Execution>, Failure> {
    if side.exec == Exec::Oracle {
        return Ok(Box::new(OracleExecution::new(gguf)?));
    }
    let device = match side.device {
        Device::Cuda => args.compute.device.choice_of(side.device, side.isa)?,
        Device::Auto | Device::Cpu => DeviceChoice::Cpu,
    };
    let options = EngineOptions {
        device,
        isa: side.isa,
        ..args.compute.options()?
    };
    let max_image_tokens = Tower::load(&gguf)?.max_image_tokens(args.image_tokens.limits()?);
    let tower = shown(|sink| TowerBackend::load(gguf, &options, max_image_tokens, sink))?;
    Ok(Box::new(tower))
}

fn execution(
    args: &DiffArgs,
    gguf: Arc<Gguf>,
    side: &Side,
    n_tokens: usize,
) -> Result<Box<dyn Execution>, Failure> {
    if side.exec == Exec::Oracle {
        return Ok(Box::new(OracleExecution::new(gguf)?));
    }
    let model = Model::load(&gguf)?;
    let compute = args.compute.options()?;
    let threads = compute.threads.unwrap_or_else(default_threads);
    let kv_type = args.compute.kv_type_or_f32();
    let n_pages = n_tokens.div_ceil(PAGE_POSITIONS);
    let on_cpu = cpu::Options {
        isa: side.isa.resolve()?,
        threads,
        pool: None,
        kv_type,
        n_pages,
        n_states: 1,
        prompt_bits: compute.prompt_bits,
        repack: compute.repack,
        lock: compute.lock,
        weights: None,
        adapters: Vec::new(),
    };
    if side.device == Device::Cuda
        && let DeviceChoice::Cuda(gpu) = args.compute.device.choice_of(side.device, side.isa)?
    {
        let gpu = cuda::open(gpu).map_err(octavo_engine::Error::from)?;
        let limits = cuda::Limits {
            rows: n_tokens,
            outputs: n_tokens,
            sequences: 1,
            positions: n_tokens,
            n_pages,
            states: 1,
        };
        let EngineOptions {
            graphs,
            check_pages,
            ..
        } = compute;
        let on_gpu = cuda::Options {
            kv_type,
            limits,
            graphs,
            check_pages,
            threads,
        };
        let gpu_layers = compute.gpu_layers.unwrap_or(usize::MAX);
        let options = split::Options {
            gpu_layers,
            experts: compute.cpu_experts,
            cpu: on_cpu,
            cuda: on_gpu,
        };
        return Ok(Box::new(shown(|sink| {
            BackendExecution::cuda(gpu, gguf, model, &options, sink)
        })?));
    }
    let backend = shown(|sink| {
        BackendExecution::cpu(gguf, model, &on_cpu, &mut |done, total| {
            sink(Loading::Weights { done, total })
        })
    });
    Ok(Box::new(backend?))
}
