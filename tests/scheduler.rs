//! Many requests through a few slots.

mod common;

use std::collections::BTreeMap;

use common::tiny;
use higgs_tts::{
    codes::{Codes, DelayedCodes},
    draw::{Draw, Request},
    graphs::{Device, DeviceChoice},
    model::{LoadOptions, Model},
    prompt::Voice,
    sampler::Sampling,
    scheduler::{Event, Scheduler},
    utterance::StopReason,
};
use tempfile::TempDir;

fn load(name: &str) -> (TempDir, Model) {
    let folder = tiny(name);
    let options = LoadOptions { device: Some(DeviceChoice::Only(Device::Cpu)), ..LoadOptions::default() };
    let model = Model::load(folder.path(), &options).unwrap();
    (folder, model)
}

/// Requests of different lengths, texts and voices; number 4 is so long that the cache must grow under the others.
fn requests() -> Vec<Request> {
    let voice = Voice {
        codes: Codes::new(common::BOOKS, (0..30 * 8).map(|n| (n * 37 % 1024) as u16).collect()).unwrap(),
        transcript: Some("How are you?".into()),
    };
    let frames = [10, 40, 3, 25, 270, 1, 20, 12, 33];
    let texts = ["Hello, this is a test.", "Have a nice day!", "One.", "The quick brown fox jumps over the lazy dog."];
    frames
        .into_iter()
        .enumerate()
        .map(|(n, frames)| Request {
            sampling: Sampling { seed: 100 + n as u64, ..Sampling::default() },
            max_frames: Some(frames),
            retries: 0,
            voice: (n % 3 == 1).then(|| voice.clone()),
            ..Request::new(texts[n % texts.len()])
        })
        .collect()
}

fn speak(model: &mut Model, slots: usize, requests: &[Request]) -> BTreeMap<usize, Draw> {
    let mut scheduler = Scheduler::new(slots);
    for request in requests {
        scheduler.submit(request.clone());
    }
    let mut draws = BTreeMap::new();
    while !scheduler.is_idle() {
        for event in scheduler.step(model).unwrap() {
            match event {
                Event::Finished(id, finished) => assert!(draws.insert(id, finished.draw).is_none()),
                Event::Failed(id, error) => panic!("{id}: {error:#}"),
                Event::Begun(_) | Event::Row(..) | Event::Rejected { .. } => {}
            }
        }
    }
    draws
}

#[test]
fn each_request_gets_the_rows_that_it_would_get_alone() {
    let (_folder, mut model) = load("cpu_fp32");
    let requests = requests();
    let alone: Vec<DelayedCodes> =
        requests.iter().map(|request| speak(&mut model, 1, std::slice::from_ref(request))[&0].rows.clone()).collect();
    for slots in [3, 8] {
        let together = speak(&mut model, slots, &requests);
        assert_eq!(together.len(), requests.len());
        for (id, draw) in together {
            assert_eq!(draw.rows, alone[id], "request {id} of {slots} slots");
            assert_eq!(draw.stop, StopReason::LengthCap);
        }
    }
}

#[test]
fn a_request_that_fails_does_not_concern_the_others() {
    let (_folder, mut model) = load("cpu_int4");
    let mut requests = requests();
    // The tiny model has 2048 positions, which so long a text does not leave room in.
    requests[1].text = "word ".repeat(3000);
    let mut scheduler = Scheduler::new(3);
    for request in &requests {
        scheduler.submit(request.clone());
    }
    assert_eq!((scheduler.waiting(), scheduler.is_idle()), (9, false));
    let (mut finished, mut failed) = (Vec::new(), Vec::new());
    while !scheduler.is_idle() {
        for event in scheduler.step(&mut model).unwrap() {
            match event {
                Event::Finished(id, _) => finished.push(id),
                Event::Failed(id, error) => failed.push((id, error.to_string())),
                _ => {}
            }
        }
    }
    finished.sort_unstable();
    assert_eq!(finished, [0, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, 1);
    assert!(failed[0].1.starts_with("the text and the reference take "), "{}", failed[0].1);
}

#[test]
fn a_rejected_draw_is_drawn_again_beside_the_others() {
    let (_folder, mut model) = load("cpu_int4");
    // Random weights do not end by themselves within this budget, so every draw is rejected.
    let request = |seed| Request { sampling: Sampling { seed, ..Sampling::default() }, ..Request::new("Hi, you.") };
    let requests = [request(1), request(50), request(90)];
    let alone: Vec<Draw> =
        requests.iter().map(|request| speak(&mut model, 1, std::slice::from_ref(request))[&0].clone()).collect();
    let mut scheduler = Scheduler::new(2);
    for request in &requests {
        scheduler.submit(request.clone());
    }
    let mut rejected = BTreeMap::<usize, Vec<u64>>::new();
    while !scheduler.is_idle() {
        for event in scheduler.step(&mut model).unwrap() {
            match event {
                Event::Rejected { id, seed, next, .. } => {
                    assert_eq!(next.seed, seed + 1);
                    rejected.entry(id).or_default().push(seed);
                }
                Event::Finished(id, finished) => {
                    assert_eq!(finished.retries, 2);
                    assert_eq!(finished.draw.rows, alone[id].rows);
                    assert!(!finished.draw.is_healthy());
                }
                Event::Failed(_, error) => panic!("{error:#}"),
                Event::Begun(_) | Event::Row(..) => {}
            }
        }
    }
    let expected = [(0, vec![1, 2]), (1, vec![50, 51]), (2, vec![90, 91])];
    assert_eq!(rejected, BTreeMap::from(expected));
}
