//! Many requests, a few slots: who is spoken now, who comes next.
//!
//! A decode step reads all weights of the model once, whether for one utterance or for eight; so several are drawn
//! together. Requests wait in order; a slot that becomes free is filled at once with the next. The active utterances
//! lie in the first slots: when one ends, the last moves to its place.

use std::{collections::VecDeque, time::Instant};

use anyhow::{Context, Result};

use crate::{
    draw::{Draws, Finished, Request, Step},
    graphs::decoder::KvCache,
    model::Model,
    sampler::Sampling,
};

/// Positions by which the slots grow, so that requests of like length share them.
const BLOCK: usize = 256;

/// What happened in a step, to the request of that number. Requests are numbered in the order in which they came.
#[derive(Debug)]
pub enum Event {
    /// The request got a slot and its prompt is read.
    Begun(usize),
    /// A row was drawn; so many frames of sound are there.
    Row(usize, usize),
    /// A draw was not healthy; another one begins.
    Rejected {
        /// The request.
        id: usize,
        /// What was wrong.
        faults: Vec<crate::draw::health::Fault>,
        /// Seed of the rejected draw.
        seed: u64,
        /// Settings of the next.
        next: Sampling,
    },
    /// The request is spoken.
    Finished(usize, Box<Finished>),
    /// The request cannot be spoken. The others go on.
    Failed(usize, anyhow::Error),
}

/// Requests in flight and waiting.
#[derive(Debug)]
pub struct Scheduler {
    slots: usize,
    cache: Option<KvCache>,
    /// The n-th has the n-th slot.
    active: Vec<(usize, Draws)>,
    waiting: VecDeque<(usize, Request)>,
    submitted: usize,
}

impl Scheduler {
    /// Speaks up to so many requests together.
    pub fn new(slots: usize) -> Self {
        Self { slots: slots.max(1), cache: None, active: Vec::new(), waiting: VecDeque::new(), submitted: 0 }
    }

    /// Adds a request and gives its number.
    pub fn submit(&mut self, request: Request) -> usize {
        let id = self.submitted;
        self.submitted += 1;
        self.waiting.push_back((id, request));
        id
    }

    /// Requests that have no slot yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether every request is spoken.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// Fills free slots, draws one row of every active utterance, and lets those that are finished go.
    ///
    /// # Errors
    /// When a graph fails or is interrupted, which concerns all requests.
    pub fn step(&mut self, model: &mut Model) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while self.active.len() < self.slots
            && let Some((id, request)) = self.waiting.pop_front()
        {
            events.push(match self.admit(model, id, request) {
                Ok(()) => Event::Begun(id),
                Err(error) => Event::Failed(id, error),
            });
        }
        let Some(cache) = self.cache.as_mut().filter(|_| !self.active.is_empty()) else {
            return Ok(events);
        };
        let start = Instant::now();
        let mut utterances: Vec<_> = self.active.iter_mut().map(|(_, draws)| draws.utterance_mut()).collect();
        model.decode_step(cache, &mut utterances)?;
        let share_s = start.elapsed().as_secs_f64() / self.active.len() as f64;
        // From the last slot to the first: what moves into a free slot has been looked at already.
        for slot in (0..self.active.len()).rev() {
            let (id, draws) = &mut self.active[slot];
            let id = *id;
            match draws.row_drawn(model, share_s) {
                Ok(Step::Row(frames)) => events.push(Event::Row(id, frames)),
                Ok(Step::Rejected { faults, seed, next }) => {
                    cache.truncate(slot, draws.prompt_len());
                    events.push(Event::Rejected { id, faults, seed, next });
                }
                Ok(Step::Finished(finished)) => events.push(Event::Finished(id, finished)),
                Err(error) => events.push(Event::Failed(id, error)),
            }
            if matches!(events.last(), Some(Event::Finished(..) | Event::Failed(..))) {
                self.active.swap_remove(slot);
                if slot < self.active.len() {
                    cache.copy(self.active.len(), slot)?;
                }
            }
        }
        Ok(events)
    }

    /// Gives a request the first free slot, in a cache that is large enough.
    fn admit(&mut self, model: &mut Model, id: usize, request: Request) -> Result<()> {
        let plan = request.plan(model)?;
        let capacity = plan.positions().next_multiple_of(BLOCK).min(model.contract().positions);
        match &mut self.cache {
            Some(cache) if cache.capacity() >= plan.positions() => {}
            Some(cache) if !self.active.is_empty() => model.grow(cache, capacity)?,
            cache => {
                // The old memory goes before the new is asked for.
                *cache = None;
                *cache = Some(model.allocate(self.slots, capacity)?);
            }
        }
        let cache = self.cache.as_mut().context("the cache is there")?;
        let draws = Draws::begin(model, cache, self.active.len(), request, &plan)?;
        self.active.push((id, draws));
        Ok(())
    }
}
