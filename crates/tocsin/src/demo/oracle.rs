//! Oracle: expected notifications, by testing every event against every person without Tocsin's rules.

use super::world::Person;

/// Fields of an earthquake that the subscriptions use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quake {
    /// Magnitude; unknown for some.
    pub magnitude: Option<f64>,
    /// Latitude in degrees.
    pub latitude: f64,
    /// Longitude in degrees.
    pub longitude: f64,
}

/// Expected number of mails for each person.
pub fn expected_mails(people: &[Person], quakes: &[Quake]) -> Vec<u64> {
    let vectors: Vec<[f64; 3]> = quakes.iter().map(|quake| unit(quake.latitude, quake.longitude)).collect();
    let wants = |person: &Person| {
        let home = unit(person.latitude, person.longitude);
        let near = quakes.iter().zip(&vectors).filter(|(quake, place)| {
            quake.magnitude.is_some_and(|magnitude| magnitude >= person.magnitude_min)
                && arc_km(&home, place) <= person.distance_km
        });
        near.count() as u64
    };
    people.iter().map(wants).collect()
}

/// Unit vector of a position. The rule language uses the haversine formula; an independent method does not share its
/// errors.
fn unit(latitude: f64, longitude: f64) -> [f64; 3] {
    let (latitude, longitude) = (latitude.to_radians(), longitude.to_radians());
    [latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()]
}

/// Great-circle distance: the angle from sine and cosine, exact for near and far positions, times the mean radius of
/// the earth.
fn arc_km(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    let cross = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
    let sine = cross.iter().map(|part| part * part).sum::<f64>().sqrt();
    let cosine: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
    sine.atan2(cosine) * 6371.0088
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_match_known_values() {
        let between = |a: (f64, f64), b: (f64, f64)| arc_km(&unit(a.0, a.1), &unit(b.0, b.1)).round();
        assert_eq!(between((52.52, 13.41), (48.14, 11.58)), 504.0);
        assert_eq!(between((0.0, 179.5), (0.0, -179.5)), 111.0);
        assert_eq!(between((90.0, 0.0), (-90.0, 77.0)), 20_015.0);
        assert_eq!(between((35.0, 139.0), (35.0, 139.0)), 0.0);
    }

    #[test]
    fn both_conditions_count_and_an_unknown_magnitude_does_not_match() {
        let person = Person {
            distance_km: 600.0,
            magnitude_min: 4.0,
            latitude: 52.52,
            longitude: 13.41,
            ..super::super::world::people(1, 1)[0].clone()
        };
        let quake = |magnitude, latitude| Quake { magnitude, latitude, longitude: 11.58 };
        let quakes = [quake(Some(4.0), 48.14), quake(Some(3.9), 48.14), quake(None, 48.14), quake(Some(9.0), 38.0)];
        assert_eq!(expected_mails(&[person], &quakes), [1]);
    }
}
