//! Pages that beams take and free, beside other requests and when pages are short.

use super::*;

const PAGE: usize = octavo_engine::PAGE_POSITIONS;

/// Returns searches and other requests, with the searches at even indices.
fn requests(engine: &Engine) -> Vec<Request> {
    let request = |i: usize| {
        let text = format!("{} {}", PROMPTS[i % 3], &PROMPTS[1][..i * 5]);
        let prompt = ids(engine, &text);
        let options = GenerationParams {
            ignore_eos: !i.is_multiple_of(4),
            logprobs: i.is_multiple_of(3).then_some(1),
            ..at_most(9 + 3 * i)
        };
        match i % 2 {
            0 => search(&prompt, &options, 2 + i % 3, 1.0),
            _ => Request {
                n: 1 + i % 3,
                ..Request::new(&prompt, &options)
            },
        }
    };
    (0..8).map(request).collect()
}

#[test]
fn it_finds_the_same_beside_any_others_and_with_few_pages() {
    let reference = engine(usual());
    let expected: Vec<Vec<BeamOutput>> = requests(&reference)
        .into_iter()
        .step_by(2)
        .map(|request| alone(&reference, request))
        .collect();
    let mut preemptions = 0;
    for (pages, batch, threads, prefill_budget, prefixes) in [
        (48, 512, 2, 100, true),
        (13, 512, 2, 100, true),
        (13, 7, 1, 1, true),
        (13, 64, 2, 1000, false),
        (16, 16, 3, 0, false),
    ] {
        let engine = engine(EngineOptions {
            batch: Some(batch.max(8)),
            threads: Some(threads),
            kv_positions: Some(pages * PAGE),
            ..usual()
        });
        let options = BatchOptions {
            prefill_budget: Duration::from_millis(prefill_budget),
            prefixes,
            ..BatchOptions::default()
        };
        let mut together = Batch::new(&engine, options);
        let mut all = BTreeMap::new();
        let mut numbers = Vec::new();
        for (i, request) in requests(&engine).into_iter().enumerate() {
            numbers.push(together.add(request).expect("there is room"));
            // some arrive when the others are running
            for _ in 0..i {
                together
                    .step(&mut |id, event| note(id, event, &mut all))
                    .expect("a step");
            }
        }
        while !together.is_empty() {
            together
                .step(&mut |id, event| note(id, event, &mut all))
                .expect("a step");
        }
        for (id, expected) in numbers.iter().step_by(2).zip(&expected) {
            assert_eq!(&all[id].0, expected, "request {id} with {pages} pages");
        }
        let after = together.snapshot();
        assert_eq!(after.pages.used, 0, "all pages are free or kept");
        preemptions += after.totals.preemptions;
    }
    assert!(preemptions > 0, "pages were short");
}

#[test]
fn whoever_is_preempted_alone_gets_by_with_the_pages_of_its_beams() {
    let reference = engine(usual());
    let prompt = [vec![5; 30], ids(&reference, PROMPTS[1])].concat();
    let options = GenerationParams {
        ignore_eos: true,
        ..at_most(20)
    };
    let request = || search(&prompt, &options, 4, 1.0);
    let expected = alone(&reference, request());
    let common = prompt.len() / PAGE;
    let pages = common + 4 * ((prompt.len() + 20).div_ceil(PAGE) - common);
    for prefixes in [true, false] {
        let engine = engine(EngineOptions {
            kv_positions: Some(pages * PAGE),
            ..usual()
        });
        let options_of_batch = BatchOptions {
            prefixes,
            ..BatchOptions::default()
        };
        let mut batch = Batch::new(&engine, options_of_batch);
        // it is older, so the search is preempted until it has ended
        let longer = GenerationParams {
            max_tokens: Some(60),
            ..options.clone()
        };
        batch
            .add(Request::new(&[6; 20], &longer))
            .expect("there is room");
        let id = batch.add(request()).expect("there is room");
        let mut all = BTreeMap::new();
        while !batch.is_empty() {
            batch
                .step(&mut |id, event| note(id, event, &mut all))
                .expect("a step");
            let used = batch.snapshot().pages.used;
            let most = pages + 80usize.div_ceil(PAGE);
            assert!(
                used <= most,
                "losers give their pages back at once: {used} of {most}"
            );
        }
        assert_eq!(all[&id].0, expected);
        assert!(batch.snapshot().totals.preemptions > 0, "it gave way");
    }
}

#[test]
fn losers_give_their_pages_back_at_once() {
    let engine = engine(usual());
    let prompt = ids(&engine, PROMPTS[1]);
    let options = GenerationParams {
        ignore_eos: true,
        ..at_most(40)
    };
    let mut batch = Batch::new(&engine, BatchOptions::default());
    let width = 3;
    batch
        .add(search(&prompt, &options, width, 1.0))
        .expect("there is room");
    while !batch.is_empty() {
        batch.step(&mut |_, _| {}).expect("a step");
        let snapshot = batch.snapshot();
        assert!(snapshot.requests.len() <= width);
        let common = prompt.len() / PAGE;
        let own = |tokens: usize| tokens.div_ceil(PAGE) - common;
        let most: usize = snapshot.requests.iter().map(|beam| own(beam.tokens)).sum();
        assert!(snapshot.pages.used <= common + most, "{snapshot:?}");
    }
}

#[test]
fn whoever_is_aborted_gives_all_pages_back() {
    let engine = engine(usual());
    let prompt = ids(&engine, PROMPTS[1]);
    let options = GenerationParams {
        ignore_eos: true,
        ..at_most(30)
    };
    for steps in 0..12 {
        let mut batch = Batch::new(&engine, BatchOptions::default());
        let ids = [(); 2].map(|()| {
            let request = search(&prompt, &options, 4, 1.0);
            batch.add(request).expect("there is room")
        });
        assert_eq!(ids, [0, 4], "a number for each beam");
        for _ in 0..steps {
            batch.step(&mut |_, _| {}).expect("a step");
        }
        assert_eq!(batch.len(), 2);
        assert!(batch.abort(ids[0]) && !batch.abort(ids[0]));
        assert!(
            !batch
                .snapshot()
                .requests
                .iter()
                .any(|beam| beam.id == ids[0])
        );
        batch.step(&mut |_, _| {}).expect("a step");
        assert!(batch.abort(ids[1]) && batch.is_empty());
        let after = batch.snapshot();
        assert_eq!(
            (after.pages.used, after.totals.aborted),
            (0, 2),
            "{steps} steps"
        );
        batch.clear_cache();
        assert_eq!(batch.snapshot().pages.free, 8 * 96 / PAGE);
    }
}

#[test]
fn a_prompt_longer_than_its_beams_have_pages_for_is_refused() {
    let engine = engine(EngineOptions {
        kv_positions: Some(8 * PAGE),
        ..usual()
    });
    let mut batch = Batch::new(&engine, BatchOptions::default());
    // five full pages and a bit: three are left for the ends of four beams
    let request = search(&[5; 5 * PAGE + 1], &GenerationParams::default(), 4, 1.0);
    let error = batch.add(request).expect_err("it is refused").to_string();
    assert_eq!(
        error,
        "the prompt has 81 tokens: expected at most the context of 80"
    );
    let request = search(&[5; 5 * PAGE + 1], &GenerationParams::default(), 3, 1.0);
    let id = batch.add(request).expect("it fits");
    let found = run(&mut batch).remove(&id).expect("it ends").0;
    let full = found
        .iter()
        .any(|found| found.text.finish == FinishReason::ContextFull);
    assert!(
        full || found
            .iter()
            .all(|found| found.text.finish == FinishReason::Stop)
    );
}
