//! Short messages: which alphabet a text needs, how many segments it takes, and how to make it fit (3GPP TS 23.038 and
//! 23.040).

use unicode_segmentation::UnicodeSegmentation;

/// How a text travels as a short message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortMessage {
    /// Whether the alphabet of GSM holds it; otherwise it travels as UCS-2.
    pub is_gsm: bool,
    /// Septets of GSM, or units of UCS-2.
    pub units: usize,
    /// How many messages it takes.
    pub segments: usize,
}

/// The characters of the basic alphabet of GSM, each one septet.
const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
/// Those of its extension, each two septets.
const EXTENDED: &str = "^{}\\[~]|€\u{c}";

/// Measures a text.
pub fn measure(text: &str) -> ShortMessage {
    let is_gsm = text.chars().all(|c| septets(c).is_some());
    let cost = |c: char| units(c, is_gsm);
    let units: usize = text.chars().map(cost).sum();
    let (single, part) = if is_gsm { (160, 153) } else { (70, 67) };
    if units <= single {
        return ShortMessage { is_gsm, units, segments: usize::from(units > 0) };
    }
    // No character is divided between two segments.
    let (mut segments, mut room) = (1, part);
    for c in text.chars() {
        let cost = cost(c);
        if cost > room {
            segments += 1;
            room = part;
        }
        room -= cost;
    }
    ShortMessage { is_gsm, units, segments }
}

fn septets(c: char) -> Option<usize> {
    match c {
        ' '..='~' if !"^{}\\[~]|`".contains(c) => Some(1),
        c if EXTENDED.contains(c) => Some(2),
        c if BASIC.contains(c) => Some(1),
        _ => None,
    }
}

fn units(c: char, is_gsm: bool) -> usize {
    if is_gsm { septets(c).unwrap_or(1) } else { c.len_utf16() }
}

/// As much of a text as fits into so many segments, its end marked by `...` if some was cut off.
pub fn shorten(text: &str, segments: usize) -> String {
    if measure(text).segments <= segments {
        return text.to_owned();
    }
    // The longest beginning that fits; with each character less it fits the better.
    let ends: Vec<usize> = text.grapheme_indices(true).map(|(at, _)| at).take(segments * 160 + 1).collect();
    let fits = |end: usize| measure(&format!("{}...", text[..end].trim_end())).segments <= segments;
    let (mut fitting, mut beyond) = (0, ends.len());
    while fitting + 1 < beyond {
        let middle = (fitting + beyond) / 2;
        if fits(ends[middle]) { fitting = middle } else { beyond = middle }
    }
    format!("{}...", text[..ends[fitting]].trim_end())
}

/// The text with what GSM lacks written by what it has, where readers see no difference: quotes, dashes, spaces, letters
/// without their marks. Others stay, and make it UCS-2.
pub fn to_gsm(text: &str) -> String {
    let (mut out, mut other) = (String::with_capacity(text.len()), [0; 4]);
    for c in text.chars() {
        if septets(c).is_some() {
            out.push(c);
            continue;
        }
        out.push_str(match c {
            '‘' | '’' | '‚' | '‛' | '′' | '`' | '´' => "'",
            '“' | '”' | '„' | '‟' | '″' | '«' | '»' => "\"",
            '‐' | '‑' | '‒' | '–' | '—' | '−' => "-",
            '…' => "...",
            '•' | '·' => "*",
            '\u{a0}' | '\u{2009}' | '\u{202f}' | '\u{2003}' | '\u{2002}' | '\t' => " ",
            '\u{200b}' | '\u{feff}' | '\u{ad}' => "",
            'á' | 'â' | 'ã' | 'ā' | 'ă' | 'ą' => "a",
            'Á' | 'À' | 'Â' | 'Ã' | 'Ā' | 'Ă' | 'Ą' => "A",
            'ç' | 'ć' | 'č' => "c",
            'Ć' | 'Č' => "C",
            'ď' => "d",
            'ê' | 'ë' | 'ē' | 'ė' | 'ę' | 'ě' => "e",
            'È' | 'Ê' | 'Ë' | 'Ē' | 'Ė' | 'Ę' | 'Ě' => "E",
            'ğ' => "g",
            'í' | 'î' | 'ï' | 'ī' | 'į' | 'ı' => "i",
            'Í' | 'Ì' | 'Î' | 'Ï' | 'İ' => "I",
            'ł' | 'ľ' => "l",
            'Ł' => "L",
            'ń' | 'ň' => "n",
            'ó' | 'ô' | 'õ' | 'ō' | 'ő' => "o",
            'Ó' | 'Ò' | 'Ô' | 'Õ' | 'Ő' => "O",
            'œ' => "oe",
            'Œ' => "OE",
            'ř' => "r",
            'ś' | 'š' | 'ş' | 'ș' => "s",
            'Ś' | 'Š' | 'Ş' | 'Ș' => "S",
            'ť' | 'ț' | 'ţ' => "t",
            'ú' | 'û' | 'ū' | 'ů' | 'ű' => "u",
            'Ú' | 'Ù' | 'Û' | 'Ů' | 'Ű' => "U",
            'ý' | 'ÿ' => "y",
            'ź' | 'ż' | 'ž' => "z",
            'Ź' | 'Ż' | 'Ž' => "Z",
            c => c.encode_utf8(&mut other),
        });
    }
    out
}

/// What a short message may hold: no control but the line end.
pub fn clean(text: &str) -> String {
    let text = text.trim();
    if !text.contains(|c: char| c.is_control() && c != '\n') {
        return text.to_owned();
    }
    let kept = text.chars().filter(|c| *c != '\r').map(|c| if c.is_control() && c != '\n' { ' ' } else { c });
    kept.collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_take_segments() {
        let found = |text: &str| {
            let measured = measure(text);
            (measured.is_gsm, measured.units, measured.segments)
        };
        assert_eq!(found(""), (true, 0, 0));
        assert_eq!(found("Straße, £5, ñ, [€]"), (true, 21, 1));
        assert_eq!(found(&"a".repeat(160)), (true, 160, 1));
        assert_eq!(found(&"a".repeat(161)), (true, 161, 2));
        assert_eq!(found(&"a".repeat(306)), (true, 306, 2));
        assert_eq!(found(&"a".repeat(307)), (true, 307, 3));
        assert_eq!(found("ž"), (false, 1, 1));
        assert_eq!(found("`"), (false, 1, 1));
        assert_eq!(found(&"ж".repeat(70)), (false, 70, 1));
        assert_eq!(found(&"ж".repeat(71)), (false, 71, 2));
        assert_eq!(found("😀"), (false, 2, 1));
        // 153 does not divide by 2, so each of the first segments has a septet to spare.
        assert_eq!(found(&"€".repeat(153)), (true, 306, 3));
        assert_eq!(found(&"😀".repeat(67)), (false, 134, 3));
    }

    #[test]
    fn texts_are_made_to_fit() {
        for (text, segments) in [("a ", 1), ("€", 2), ("ж", 1), ("😀", 2), ("ab ж", 3)] {
            let long = text.repeat(400);
            let short = shorten(&long, segments);
            assert!(short.ends_with("..."), "{short}");
            assert_eq!(measure(&short).segments, segments, "{short}");
            assert!(long.starts_with(short.trim_end_matches('.').trim_end()), "{short}");
        }
        assert_eq!(shorten("short", 1), "short");
        assert_eq!(to_gsm("„Łódź – it’s…“ 日"), "\"Lódz - it's...\" 日".replace('ó', "o"));
        assert_eq!(clean(" a\tb\r\nc\u{7}\n"), "a b\nc");
    }
}
