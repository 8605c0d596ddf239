//! What a text may hold before it reaches the tokenizer, and how long it takes to say.
//!
//! The model takes plain text with control tags such as `<|emotion:elation|>`. Its tokenizer knows further tokens of
//! that shape that build the prompt; inside a text they would break it, so only the tags pass.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::error::UserError;

/// The control tags of the model card, by category. One request is one turn: emotion, style, speed, pitch and
/// expressiveness lead it; pauses and sound effects stand where they happen.
const TAGS: [(&str, &[&str]); 4] = [
    (
        "emotion",
        &[
            "elation",
            "amusement",
            "enthusiasm",
            "determination",
            "pride",
            "contentment",
            "affection",
            "relief",
            "contemplation",
            "confusion",
            "surprise",
            "awe",
            "longing",
            "arousal",
            "anger",
            "fear",
            "disgust",
            "bitterness",
            "sadness",
            "shame",
            "helplessness",
        ],
    ),
    ("style", &["singing", "shouting", "whispering"]),
    ("sfx", &["cough", "laughter", "crying", "screaming", "burping", "humming", "sigh", "sniff", "sneeze"]),
    (
        "prosody",
        &[
            "speed_very_slow",
            "speed_slow",
            "speed_fast",
            "speed_very_fast",
            "pitch_low",
            "pitch_high",
            "pause",
            "long_pause",
            "expressive_high",
            "expressive_low",
        ],
    ),
];

/// Whether a token of the form `<|category:name|>` is a documented control tag.
pub fn is_tag(token: &str) -> bool {
    tag_name(token).is_some()
}

/// The `category:name` of a documented control tag.
fn tag_name(token: &str) -> Option<&str> {
    let inner = token.strip_prefix("<|")?.strip_suffix("|>")?;
    let (category, name) = inner.split_once(':')?;
    TAGS.iter().any(|&(known, names)| known == category && names.contains(&name)).then_some(inner)
}

/// The longest text that is looked at: a few times what one draw can speak. The tokenizer takes minutes for texts of a
/// megabyte without spaces.
pub const LONGEST_BYTES: usize = 16 * 1024;

/// Refuses texts that are too long to be looked at.
///
/// # Errors
/// A [`UserError`].
pub fn check_size(text: &[u8]) -> Result<()> {
    if text.len() > LONGEST_BYTES {
        let message = format!("the text has more than {LONGEST_BYTES} bytes");
        return Err(UserError::request(message).with_hint("split it into parts of a few sentences").into());
    }
    Ok(())
}

/// A text that can be spoken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanText {
    /// What goes to the tokenizer.
    pub text: String,
    /// What was left out, in words for the person who wrote it.
    pub warnings: Vec<String>,
}

/// Makes a text speakable: leaves out tokens that are not control tags, emoji, control characters and markup such as
/// `***`, and reduces white space to single spaces. Everything left out but white space is named in a warning.
///
/// # Errors
/// A [`UserError`] when no letter or digit is left.
pub fn clean(text: &str) -> Result<CleanText> {
    // Invisible characters go first: leaving one out later could make a token of its neighbours.
    let visible: String = text.chars().filter(|&c| !is_invisible(c)).collect();
    let mut left_out = LeftOut { invisible: text.chars().count() - visible.chars().count(), ..LeftOut::default() };
    let mut kept = String::with_capacity(visible.len());
    let mut rest = visible.as_str();
    while let Some(first) = rest.chars().next() {
        let mut taken = first.len_utf8();
        if let Some(token) = leading_token(rest) {
            taken = token.len();
            if is_tag(token) {
                kept.push_str(token);
            } else {
                kept.push(' ');
                *left_out.tokens.entry(token).or_default() += 1;
            }
        } else if is_emoji(first) {
            left_out.emoji += 1;
            kept.push(' ');
        } else if let Some(run) = leading_markup(rest) {
            taken = run;
            left_out.markup += 1;
            kept.push(' ');
        } else {
            kept.push(first);
        }
        rest = &rest[taken..];
    }
    let text = kept.split_whitespace().collect::<Vec<_>>().join(" ");
    if !without_tags(&text).any(char::is_alphanumeric) {
        return Err(UserError::request("the text has no letter or digit to speak").into());
    }
    Ok(CleanText { text, warnings: left_out.warnings() })
}

/// What was left out of a text.
#[derive(Default)]
struct LeftOut<'a> {
    tokens: BTreeMap<&'a str, usize>,
    emoji: usize,
    invisible: usize,
    markup: usize,
}

impl LeftOut<'_> {
    /// Tokens that are named; of more, only the number is told.
    const NAMED: usize = 5;

    fn warnings(&self) -> Vec<String> {
        let times = |count: usize| if count == 1 { String::new() } else { format!(" ({count} times)") };
        let named = self.tokens.iter().take(Self::NAMED);
        let mut warnings: Vec<String> = named
            .map(|(token, &count)| {
                format!("`{token}` is not a control tag and was left out of the text{}", times(count))
            })
            .collect();
        let others = self.tokens.len().saturating_sub(Self::NAMED);
        for (count, one, many) in [
            (others, "other token", "other tokens"),
            (self.emoji, "emoji", "emoji"),
            (self.invisible, "invisible character", "invisible characters"),
            (self.markup, "run of markup such as `***`", "runs of markup such as `***`"),
        ] {
            if count > 0 {
                warnings.push(format!("left out of the text: {count} {}", if count == 1 { one } else { many }));
            }
        }
        warnings
    }
}

/// A token `<|…|>` at the beginning of a text: up to 48 characters without white space or brackets inside.
fn leading_token(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("<|")?;
    let ends_name = |c: char| c.is_whitespace() || matches!(c, '<' | '>' | '|');
    let (length, _) = inner.char_indices().take(49).find(|&(_, c)| ends_name(c))?;
    (length > 0 && inner[length..].starts_with("|>")).then(|| &text[..length + 4])
}

/// The bytes of a run of markup at the beginning of a text.
fn leading_markup(text: &str) -> Option<usize> {
    let first = text.chars().next().filter(|c| matches!(c, '*' | '_' | '#' | '=' | '~' | '`' | '-'))?;
    let run = text.len() - text.trim_start_matches(first).len();
    (run >= if first == '-' { 3 } else { 2 }).then_some(run)
}

fn is_emoji(c: char) -> bool {
    matches!(c, '\u{1f000}'..='\u{1faff}' | '\u{2600}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}' | '\u{20e3}')
}

/// Control and format characters that no tokenizer should see; white space is not among them. The joiners of Persian
/// and the Indic scripts (U+200C, U+200D) belong to the spelling of words and stay.
fn is_invisible(c: char) -> bool {
    (c.is_control() && !c.is_whitespace())
        || matches!(c, '\u{ad}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
        || matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffc}' | '\u{e0000}'..='\u{e007f}')
}

/// The characters of a clean text outside its tags.
fn without_tags(text: &str) -> impl Iterator<Item = char> {
    let mut rest = text;
    std::iter::from_fn(move || {
        while let Some(token) = leading_token(rest) {
            rest = &rest[token.len()..];
        }
        let first = rest.chars().next()?;
        rest = &rest[first.len_utf8()..];
        Some(first)
    })
}

/// Seconds that a clean text takes to say, roughly: 14 letters or 4 ideographs a second, a third of a second a digit,
/// the documented lengths of pauses and sound effects, and the documented factor of a speed tag.
pub fn expected_speech_s(text: &str) -> f64 {
    let characters: f64 = without_tags(text)
        .map(|c| match c {
            '.' | '!' | '?' | '。' | '！' | '？' | '…' | ';' | ':' => 0.25,
            // Han and Kana, Hangul syllables, compatibility ideographs, and the planes of rare ideographs.
            '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}' => {
                1.0 / 4.0
            }
            c if c.is_numeric() => 1.0 / 3.0,
            c if c.is_alphabetic() => 1.0 / 14.0,
            _ => 0.0,
        })
        .sum();
    let count = |tag: &str| text.matches(tag).count() as f64;
    let events = 0.7 * count("<|prosody:pause|>") + 1.5 * count("<|prosody:long_pause|>") + 1.0 * count("<|sfx:");
    let speeds = [("speed_very_slow", 0.65), ("speed_slow", 0.85), ("speed_fast", 1.2), ("speed_very_fast", 1.4)];
    let speed =
        speeds.iter().filter(|(name, _)| count(&format!("<|prosody:{name}|>")) > 0.0).map(|&(_, factor)| factor);
    // With several speeds in one text the slowest counts: the estimate serves as a limit.
    characters / speed.fold(None, |slowest: Option<f64>, f| Some(slowest.map_or(f, |s| s.min(f)))).unwrap_or(1.0)
        + events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(text: &str) -> String {
        clean(text).unwrap().text
    }

    #[test]
    fn there_are_43_tags() {
        assert_eq!(TAGS.iter().map(|(_, names)| names.len()).sum::<usize>(), 43);
        assert!(is_tag("<|sfx:laughter|>"));
        assert!(!is_tag("<|sfx:thunder|>") && !is_tag("<|tts|>") && !is_tag("sfx:laughter"));
    }

    #[test]
    fn ordinary_text_and_tags_pass_unchanged() {
        for text in [
            "Hello, this is a test.",
            "Schöne Grüße, 1984! <|emotion:elation|>",
            "今天天气很好，我们去公园散步吧。",
            "2 * 3 = 6, #1, snake_case, a - b -- c, ~5",
            "می‌خواهم",
        ] {
            assert_eq!(clean(text).unwrap(), CleanText { text: text.into(), warnings: vec![] });
        }
    }

    #[test]
    fn tokens_that_build_the_prompt_are_left_out_and_named() {
        let found = clean("Hello<|audio|> there <|sfx:thunder|>.").unwrap();
        assert_eq!(found.text, "Hello there .");
        assert_eq!(
            found.warnings,
            [
                "`<|audio|>` is not a control tag and was left out of the text",
                "`<|sfx:thunder|>` is not a control tag and was left out of the text"
            ]
        );
    }

    #[test]
    fn leaving_a_token_out_cannot_make_a_new_one() {
        assert_eq!(cleaned("x <|au<|tts|>dio|>"), "x <|au dio|>");
        assert_eq!(cleaned("x <\u{200b}|audio|> y"), "x y");
        assert_eq!(cleaned("x <<|tts|>|audio|> y"), "x < |audio|> y");
    }

    #[test]
    fn many_tokens_are_counted_and_only_some_named() {
        let text: String = (0..100).map(|n| format!("<|x{}|>", n % 7)).collect();
        let warnings = clean(&format!("Hello {text}")).unwrap().warnings;
        assert_eq!(warnings.len(), 6);
        assert_eq!(warnings[0], "`<|x0|>` is not a control tag and was left out of the text (15 times)");
        assert_eq!(warnings[5], "left out of the text: 2 other tokens");
    }

    /// Each of these took minutes when a character cost as much as the text behind it.
    #[test]
    fn the_time_for_a_text_grows_with_its_length_only() {
        for part in ["<|", "\u{1f600}", "****", "a\u{301}", "<|a|>"] {
            let text = format!("H{}", part.repeat(200_000));
            assert!(clean(&text).is_ok(), "{part}");
        }
    }

    #[test]
    fn emoji_invisible_characters_and_markup_do_not_become_noises() {
        let found = clean("**Bold** 👍🏽 text\u{7}\n\n---\n\n# Title").unwrap();
        assert_eq!(found.text, "Bold text # Title");
        assert_eq!(
            found.warnings,
            [
                "left out of the text: 2 emoji",
                "left out of the text: 1 invisible character",
                "left out of the text: 3 runs of markup such as `***`"
            ]
        );
    }

    #[test]
    fn a_text_without_a_letter_or_digit_is_an_error() {
        for text in ["", " \n", "...", "<|emotion:elation|>", "👍", "<|audio|>"] {
            assert_eq!(clean(text).unwrap_err().to_string(), "the text has no letter or digit to speak");
        }
    }

    #[test]
    fn expected_speech_follows_letters_ideographs_digits_and_tags() {
        let close = |text: &str, expected: f64| {
            let found = expected_speech_s(text);
            assert!((found - expected).abs() < 0.01, "{text}: {found}, expected {expected}");
        };
        close("abcdefghijklmn", 1.0);
        close("今天天气", 1.0);
        close("123", 1.0);
        close("<|prosody:speed_very_slow|>abcdefghijklmn", 1.0 / 0.65);
        close("<|prosody:long_pause|>abcdefg<|sfx:cough|>", 0.5 + 1.5 + 1.0);
    }
}
