//! Opus for Symphonia, which finds the packets in Ogg, Matroska and MP4 but cannot decode them.

use opus_rs::multistream::{ChannelMappingTable, MultistreamDecoder};
use symphonia::core::audio::{
    AsGenericAudioBufferRef, Audio, AudioBuffer, AudioMut, AudioSpec, Channels, GenericAudioBufferRef,
};
use symphonia::core::codecs::CodecInfo;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions, FinalizeResult};
use symphonia::core::codecs::registry::{RegisterableAudioDecoder, SupportedAudioCodec};
use symphonia::core::errors::{Result, decode_error, unsupported_error};
use symphonia::core::packet::PacketRef;

/// Opus always decodes at this rate, whatever the rate before encoding was.
const SAMPLE_RATE_HZ: u32 = 48_000;

/// The longest packet: 120 ms.
const MAX_PACKET_SAMPLES: usize = 5760;

/// The fixed part of the identification header (RFC 7845, section 5.1).
const HEAD_BYTES: usize = 19;

const CODECS: &[SupportedAudioCodec] = &[SupportedAudioCodec {
    id: CODEC_ID_OPUS,
    info: CodecInfo { short_name: "opus", long_name: "Opus", profiles: &[] },
}];

/// What the identification header says.
struct Head {
    table: ChannelMappingTable,
    /// Samples at 48 kHz that the encoder put before the sound.
    pre_skip_samples: usize,
    /// Factor on every sample.
    gain: f32,
}

impl Head {
    /// Reads the header (RFC 7845, section 5.1), with the big-endian fields of MP4 where the version is 0.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, tail) = bytes.split_at_checked(HEAD_BYTES)?;
        let u16_at = |at: usize| {
            let field = [head[at], head[at + 1]];
            if head[8] == 0 { u16::from_be_bytes(field) } else { u16::from_le_bytes(field) }
        };
        let table = match (head[18], head[9]) {
            (0, channels @ 1..=2) => {
                let mapping = (0..channels).collect();
                ChannelMappingTable { channels, stream_count: 1, coupled_count: channels - 1, mapping }
            }
            (family, channels) => ChannelMappingTable::parse(family, channels, tail)?,
        };
        let gain_db = f32::from(u16_at(16).cast_signed()) / 256.0;
        Some(Self { table, pre_skip_samples: usize::from(u16_at(10)), gain: 10f32.powf(gain_db / 20.0) })
    }
}

/// An Opus decoder that can be registered with Symphonia.
pub(super) struct OpusDecoder {
    params: AudioCodecParameters,
    trims: bool,
    decoder: MultistreamDecoder,
    gain: f32,
    /// What is left of the pre-skip. Containers disagree on who removes it, so it is always done here.
    skip_samples: usize,
    interleaved: Vec<f32>,
    buffer: AudioBuffer<f32>,
}

impl OpusDecoder {
    fn decode_packet(&mut self, packet: &PacketRef<'_>) -> Result<()> {
        if packet.data.is_empty() {
            return decode_error("opus: empty packet");
        }
        let decoded = self.decoder.decode(packet.data, MAX_PACKET_SAMPLES, &mut self.interleaved);
        let samples = decoded.or_else(decode_error)?;
        let interleaved = &mut self.interleaved[..samples * self.buffer.num_planes()];
        interleaved.iter_mut().for_each(|sample| *sample *= self.gain);
        self.buffer.render_uninit(Some(samples));
        self.buffer.copy_from_slice_interleaved(&interleaved);
        if self.trims {
            let skip = self.skip_samples.min(samples);
            self.skip_samples -= skip;
            self.buffer.trim(skip, usize::try_from(packet.trim_end.get()).unwrap_or(usize::MAX));
        }
        Ok(())
    }
}

impl AudioDecoder for OpusDecoder {
    fn reset(&mut self) {
        self.buffer.clear();
    }

    fn codec_info(&self) -> &CodecInfo {
        &CODECS[0].info
    }

    fn codec_params(&self) -> &AudioCodecParameters {
        &self.params
    }

    fn decode_ref(&mut self, packet: &PacketRef<'_>) -> Result<GenericAudioBufferRef<'_>> {
        self.buffer.clear();
        self.decode_packet(packet)?;
        Ok(self.buffer.as_generic_audio_buffer_ref())
    }

    fn finalize(&mut self) -> FinalizeResult {
        FinalizeResult::default()
    }

    fn last_decoded(&self) -> GenericAudioBufferRef<'_> {
        self.buffer.as_generic_audio_buffer_ref()
    }
}

impl RegisterableAudioDecoder for OpusDecoder {
    fn try_registry_new(params: &AudioCodecParameters, options: &AudioDecoderOptions) -> Result<Box<dyn AudioDecoder>> {
        let Some(head) = params.extra_data.as_deref().and_then(Head::parse) else {
            return unsupported_error("opus: no header, or one with an unknown channel mapping");
        };
        let channels = head.table.channels;
        let Ok(decoder) = MultistreamDecoder::new(SAMPLE_RATE_HZ.cast_signed(), head.table) else {
            return unsupported_error("opus: contradictory channel mapping");
        };
        let spec = AudioSpec::new(SAMPLE_RATE_HZ, Channels::Discrete(u16::from(channels)));
        Ok(Box::new(Self {
            params: params.clone(),
            trims: options.gapless,
            decoder,
            gain: head.gain,
            skip_samples: head.pre_skip_samples,
            interleaved: vec![0.0; MAX_PACKET_SAMPLES * usize::from(channels)],
            buffer: AudioBuffer::new(spec, MAX_PACKET_SAMPLES),
        }))
    }

    fn supported_codecs() -> &'static [SupportedAudioCodec] {
        CODECS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(version: u8, channels: u8, fields: [u8; 8], family: u8) -> Vec<u8> {
        let [skip @ .., gain_0, gain_1] = fields;
        [b"OpusHead", &[version, channels][..], &skip[..], &[gain_0, gain_1, family]].concat()
    }

    #[test]
    fn the_header_gives_pre_skip_and_gain_in_either_byte_order() {
        let ogg = Head::parse(&head(1, 2, [0x38, 0x01, 0, 0, 0, 0, 0x00, 0xfa], 0)).unwrap();
        let mp4 = Head::parse(&head(0, 2, [0x01, 0x38, 0, 0, 0, 0, 0xfa, 0x00], 0)).unwrap();
        for head in [ogg, mp4] {
            assert_eq!(head.pre_skip_samples, 312);
            assert!((head.gain - 0.501_187).abs() < 1e-6, "-6 dB is a factor of {}", head.gain);
            assert_eq!((head.table.stream_count, head.table.coupled_count, head.table.channels), (1, 1, 2));
        }
    }

    #[test]
    fn a_header_that_is_short_or_has_impossible_channels_is_refused() {
        assert!(Head::parse(b"OpusHead").is_none());
        assert!(Head::parse(&head(1, 3, [0; 8], 0)).is_none());
        assert!(Head::parse(&head(1, 6, [0; 8], 1)).is_none(), "the mapping table is missing");
    }
}
