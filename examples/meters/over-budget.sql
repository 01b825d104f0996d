-- What each building used, and its largest reading, which the notification tells of.
WITH used AS (
    SELECT building, sum(kwh) AS used, count(*) AS meters
    FROM events GROUP BY building
),
largest AS (
    SELECT building, _event, meter, row_number() OVER (PARTITION BY building ORDER BY kwh DESC, _event) AS place
    FROM events
)
SELECT largest._event, budget._subscription, used.used, used.meters, largest.meter AS largest
FROM used
JOIN largest ON largest.building = used.building AND largest.place = 1
JOIN budget ON budget.building = used.building AND budget.kwh < used.used
-- Whoever is away is not told.
WHERE NOT EXISTS (
    SELECT 1 FROM away WHERE away.building = used.building AND away._subscriber = budget._subscriber
)
